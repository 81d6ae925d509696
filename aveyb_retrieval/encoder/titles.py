"""Read a document's title again at the head of every split.

A split is contextualized alone, beside what it retrieves: behind the first 256 tokens of a document its title is
known only where a split retrieves the first one. Read again, it names what every passage is about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.passages import Cuts

_LARGEST_SHARE = 4  # at most a quarter of a split


def repeat_title(ids: np.ndarray, cuts: Cuts, n_title: int, split_size: int) -> tuple[np.ndarray, Cuts]:
    """Put the first tokens of a text again before every run of tokens that begins a split after the first.

    Args:
        ids: int `[T]`, the tokens of prompt, title and text.
        cuts: its passages.
        n_title: how many tokens prompt and title take; of more than a quarter of a split the first are repeated.
        split_size: S.

    Returns:
        The tokens that are read, int `[T + r n]` where r splits follow the first and n tokens are repeated, and the
        same passages in them. Repeated tokens belong to the passage that goes on behind them.
    """
    n_title = min(n_title, split_size // _LARGEST_SHARE)
    begins = np.arange(split_size, len(ids), split_size - n_title)
    if not n_title or not len(begins):
        return ids, cuts
    repeated = np.insert(ids, np.repeat(begins, n_title), np.tile(ids[:n_title], len(begins)))
    return repeated, replace(cuts, ranges=cuts.ranges + n_title * np.searchsorted(begins, cuts.ranges))
