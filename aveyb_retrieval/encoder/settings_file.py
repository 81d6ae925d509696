"""Read the JSON files of a model folder, which may have been damaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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


def is_released(settings: Mapping[str, Any]) -> bool:
    """Return whether these are the fields of a configuration in the authors' format."""
    return "d_embed" in settings


def required_fields(settings: Mapping[str, Any], names: tuple[str, ...], family: str, where: str) -> dict[str, Any]:
    """Return the fields `names` of a released configuration.

    Args:
        settings: the fields of a `config.json`.
        names: those that the configuration of this family must have.
        family: "Avey-B" or "Avey", for the message.
        where: the file, for the message.

    Raises:
        ModelError: one is missing.
    """
    if missing := [name for name in names if name not in settings]:
        raise ModelError(f"{where}: a released {family} configuration must have {', '.join(names)}; lacks {missing}")
    return {name: settings[name] for name in names}
