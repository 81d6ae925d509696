"""Shares: how much passages count, less where a mail only repeats what another one says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.text.quoting import Repetition, is_mail, repetitions

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

FORWARDED_SHARE = 0.5  # of a mail that is forwarded, which the index may lack otherwise
QUOTED_SHARE = 0.1
SIGNED_SHARE = 0.05  # of a signature or disclaimer
FIRST_SIGNED_SHARE = 0.2  # of one among those with the same words

_SHARES = np.empty(len(Repetition), np.float32)
_SHARES[Repetition.OWN] = 1
_SHARES[Repetition.FORWARDED] = FORWARDED_SHARE
_SHARES[Repetition.QUOTED] = QUOTED_SHARE
_SHARES[Repetition.SIGNED] = SIGNED_SHARE


def passage_shares(title: str, text: str, spans: IntArray) -> FloatArray:
    """Return how much passages, characters `[n, 2]` of a text, count, float32 `[n]`."""
    if not is_mail(text):
        return np.ones(len(spans), np.float32)
    return _SHARES[repetitions(title, text, spans)]
