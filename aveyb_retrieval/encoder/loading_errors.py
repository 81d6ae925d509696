"""What transformers raises about damaged folders and configurations, as this package's errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from aveyb_retrieval.errors import AveyBError, ConfigError
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

# what transformers and sentence-transformers raise about damaged folders, for want of errors of their own
LOADING_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    RuntimeError,
    MemoryError,
    SafetensorError,
    StrictDataclassError,
)


@contextmanager
def config_errors() -> Iterator[None]:
    """Raise `ConfigError` for what transformers raises about the fields that it adds to a configuration."""
    try:
        yield
    except AveyBError:
        raise
    except LOADING_ERRORS as error:
        raise ConfigError(f"config.json: {type(error).__name__} ({first_line(error)})") from error
