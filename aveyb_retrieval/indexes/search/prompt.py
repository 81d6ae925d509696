"""Found passages as text for a prompt."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

from aveyb_retrieval.encoder.text.outline import outline
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aveyb_retrieval.indexes.search.hits import Hit

_LONGEST_TOKEN = 16  # characters, in the mean: of a longer text no more can fit
_PIECE = re.compile(r"[^\W\d_]{1,5}|\d{1,3}|[^\w\s]|_|\n+")


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a language model will read: five letters, three digits or one sign are one each.

    Characters outside ASCII count as one each. Mostly too high, not always.
    """
    return sum(1 if piece.isascii() else len(piece) for piece in _PIECE.findall(text))


def hits_to_prompt(
    hits: Sequence[Hit], *, max_tokens: int = 2000, count: Callable[[str], int] = estimate_tokens
) -> str:
    """Write the passages of hits one after another, numbered and cited, within a budget of tokens.

    Of the first hit as many sentences are kept as fit, or words where not even one does: from the beginning of its
    passage, or from its best sentence where that would be lost; the characters that are cited are those that are kept.
    Any other passage that does not fit is left out as a whole, and smaller ones after it may still be taken; the
    numbers stay those of the hits, so that `[3]` in an answer means `hits[2]`.

    Args:
        hits: Best first. A hit without a passage gives its whole text.
        max_tokens: The budget.
        count: How many tokens a text has; the default is an estimate that is mostly too high.

    Raises:
        ConfigError: the budget is not a positive number, or none of the hits fits into it.
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens!r}: must be a whole number of at least 1")
    blocks, left, smallest = [], max_tokens, 0
    for number, hit in enumerate(hits, start=1):
        block = _block(number, hit)
        size = count(block)
        smallest = min(smallest or size, size)
        if number == 1 and size > left:
            block = _block(1, _trimmed(hit, left, lambda shorter: count(_block(1, shorter)) <= max_tokens) or hit)
            size = count(block)
        if size <= left:
            blocks.append(block)
            left -= size
    if hits and not blocks:
        raise ConfigError(f"max_tokens={max_tokens}: none of the {len(hits)} hits fits; the smallest has {smallest}")
    return "".join(blocks)


def _trimmed(hit: Hit, tokens: int, fits: Callable[[Hit], bool]) -> Hit | None:
    """What fits of a hit: whole sentences, else words; None where not even a word does."""
    whole, offset = (hit.text, 0) if hit.passage is None else (hit.passage, hit.span[0] if hit.span else 0)
    best = (0, 0) if hit.best_sentence is None else (hit.best_sentence[0] - offset, hit.best_sentence[1] - offset)
    for begin in sorted({0, best[0]}):
        text = whole[begin : begin + _LONGEST_TOKEN * tokens]

        def part(end: int, text: str = text, start: int = offset + begin) -> Hit:
            kept = text[:end].rstrip()
            return replace(hit, passage=kept, span=(start, start + len(kept)))

        words = [word.end() for word in re.finditer(r"\S+", text)]
        for ends in ([*outline(text).places[1:].tolist(), len(text)], words):
            number = bisect_left(ends, True, key=lambda end: not fits(part(end)))
            if number and (begin == best[0] or ends[number - 1] >= best[1]):
                return part(ends[number - 1])
    return None


def _block(number: int, hit: Hit) -> str:
    place = hit.id if hit.page is None else f"{hit.id}, {hit.place}"
    place += f", characters {hit.span[0]}-{hit.span[1]}" if hit.span else ""
    names = [part for part in (hit.title, hit.heading) if part]
    head = f"[{number}] {' > '.join(names)} ({place})" if names else f"[{number}] ({place})"
    return f"{head}\n{(hit.passage if hit.passage is not None else hit.text).strip()}\n\n"
