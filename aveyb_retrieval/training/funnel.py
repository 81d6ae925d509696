"""Put a funnel into a trained model without training: its weights stay, its configuration changes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.sentence_transformers import PASSED_ON
from aveyb_retrieval.encoder.folders import is_released, model_folder
from aveyb_retrieval.encoder.network.checkpoints import read_settings
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def add_funnel(
    model: str | Path | None,
    out: Path,
    *,
    after: int,
    factor: int = 2,
    pool: str = "mean",
    recovery: str = "average_last",
) -> AveyBConfig:
    """Write a copy of a model that pools neighbouring tokens behind its first layers (see `encoder/network/funnel.py`).

    Args:
        model: folder or hub name, with or without a head; None: the embedded model.
        out: the new folder.
        after: how many layers see every token.
        factor: how many tokens become one row; 1 makes a model that computes what `model` does.
        pool: "mean" or "max".
        recovery: as `AveyBConfig.funnel_recovery`.

    Returns:
        The new configuration.

    Raises:
        ConfigError: `out` exists, the model has a funnel already, or the values do not fit it or each other.
        ModelError: there is no Avey-B model.
    """
    folder = model_folder(model)
    if out.exists():
        raise ConfigError(f"{out} exists: choose another folder")
    settings = read_settings(folder, {}, needed=True)
    assert settings is not None  # it raises where there are none
    config = AveyBConfig.from_dict(settings)
    if config.funnel_after is not None:
        raise ConfigError(
            f"{folder}: funnel_after is {config.funnel_after} already, and after={after} is asked for: name the model "
            "that it was made from"
        )
    chosen: dict[str, int | str] = {"funnel_after": after, "funnel_factor": factor}
    if factor != 1:
        chosen |= {"funnel_pool": pool, "funnel_recovery": recovery}
    config = AveyBConfig.from_dict(config.to_dict() | chosen)
    if is_released(settings):
        AveyBModel.from_pretrained(folder, config=config).save_pretrained(out)
        return config
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("onnx"))  # the ONNX form has no funnel
    (out / "config.json").write_text(json.dumps(settings | chosen, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if (modules := out / "modules.json").is_file():
        listed = json.loads(modules.read_text(encoding="utf-8"))
        listed[0]["kwargs"] = PASSED_ON
        modules.write_text(json.dumps(listed, indent=2), encoding="utf-8")
    return config
