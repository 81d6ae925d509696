"""How a text, or a pair of texts, becomes one sequence for a head: `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer


def sequence_ids(tokenizer: Tokenizer, first: str, second: str | None, limit: int) -> tuple[np.ndarray, bool]:
    """Return the ids int64 `[T]` of a text or pair, and whether something was cut off.

    Cut as transformers cuts (`longest_first`): the longer text first, then both alike.

    Raises:
        ConfigError: `limit` leaves no room for a token.
    """
    special = 2 if second is None else 3
    if limit <= special:
        raise ConfigError(f"length is {limit}; {special} tokens are [CLS] and [SEP], so it must be more")
    a = tokenizer.encode_ids(first)
    b = np.empty(0, np.int32) if second is None else tokenizer.encode_ids(second)
    room = limit - special
    cut = len(a) + len(b) > room
    if cut and second is None:
        a = a[:room]
    elif cut:
        shorter, longer = sorted((len(a), len(b)))
        longer = shorter if shorter > room else max(shorter, room - shorter)
        if shorter + longer > room:
            shorter, longer = room // 2, room - room // 2
        kept = (shorter, longer) if len(a) <= len(b) else (longer, shorter)
        a, b = a[: kept[0]], b[: kept[1]]
    parts: list[np.ndarray | list[int]] = [[tokenizer.cls_id], a, [tokenizer.sep_id]]
    if second is not None:
        parts += [b, [tokenizer.sep_id]]
    return np.concatenate(parts).astype(np.int64), cut


def write_template(folder: Path, tokenizer: Tokenizer) -> None:
    """Make the saved `tokenizer.json` of a model folder put the same tokens around texts and pairs.

    Args:
        folder: where `tokenizer.save` has written.
        tokenizer: gives the ids.
    """
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    special = {"[CLS]": tokenizer.cls_id, "[SEP]": tokenizer.sep_id}
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    cls, sep = ({"SpecialToken": {"id": name, "type_id": 0}} for name in special)
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [cls, a, sep],
        "pair": [cls, a, sep, b, sep],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in special.items()},
    }
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
