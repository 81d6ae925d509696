"""What the configurations of Avey-B and Avey share, and what transformers raises about damaged ones."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from aveyb_retrieval.encoder.folders import is_released
from aveyb_retrieval.errors import AveyBError, ConfigError, ModelError
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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


class BaseConfig(transformers.PreTrainedConfig):
    """The widths of a layer, and the authors' format of a configuration."""

    family: ClassVar[str]  # for messages

    if TYPE_CHECKING:
        hidden_size: int
        expansion_factor: int
        tail_share: float
        from_released: ClassVar[Callable[..., Any]]  # of the fields that a `config.json` of the authors must have

    def _check_tail(self) -> None:
        tail = round(self.tail_share * self.expansion_factor * self.hidden_size, 6)  # 0.7 x 40 is not quite 28
        if not 0 < self.tail_share < 1 or tail % 2:
            raise ConfigError(
                f"{type(self).__name__}.tail_share is {self.tail_share}: of expansion_factor {self.expansion_factor} x "
                f"hidden_size {self.hidden_size} that is a tail of {tail:g}; it must be even, above 0 and less than all"
            )

    @property
    def mixed_size(self) -> int:
        """m, the width of the part that is mixed; the gate is as wide, the bypassed head takes the rest."""
        return round(self.tail_share * self.expansion_factor * self.hidden_size) // 2

    @property
    def bypass_size(self) -> int:
        """The width of the bypassed head."""
        return self.expansion_factor * self.hidden_size - 2 * self.mixed_size

    @classmethod
    def read_released(cls, settings: Mapping[str, Any], where: str) -> Any:
        """Return the configuration that a `config.json` in the authors' format means; `where` names the file.

        Raises:
            ConfigError: a value is out of range.
            ModelError: a field is missing.
        """
        names = inspect.signature(cls.from_released).parameters
        if missing := [name for name in names if name not in settings]:
            raise ModelError(
                f"{where}: a released {cls.family} configuration must have {', '.join(names)}; lacks {missing}"
            )
        return cls.from_released(**{name: settings[name] for name in names})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from the fields of a `config.json`, ours or the authors'; `kwargs` are those of transformers.

        Raises:
            ConfigError: a value is out of range, not one of its choices, or of another type.
            ModelError: a released configuration lacks a field.
        """
        with config_errors():
            if is_released(config_dict):
                config_dict = cls.read_released(config_dict, "config.json").to_dict()
            return super().from_dict(config_dict, **kwargs)
