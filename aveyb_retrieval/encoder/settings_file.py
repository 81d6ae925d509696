"""Read the JSON files of a model folder, which may have been damaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, "" where it has none."""
    return next(iter(str(error).strip().splitlines()), "")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one where there is no file.

    Raises:
        ModelError: the file holds anything else.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}); copy or download the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not JSON of an object but of a {type(content).__name__}; copy the model again")
    return content
