"""Words of a query as an FTS5 expression; whatever a user types, it is never syntax."""

from __future__ import annotations

import re
import unicodedata

from aveyb_retrieval.index.types import IntArray

_WORD = re.compile(r"[^\W_]+")
# Words in more than half of all English documents: BM25 gives them next to nothing, and they cost the most to look up.
# fmt: off
_STOP = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "how", "in", "is", "it",
    "its", "of", "on", "or", "that", "the", "this", "to", "was", "were", "what", "when", "where", "which",
    "who", "why", "will", "with",
))
# fmt: on


def words(text: str) -> list[str]:
    """Words of a text, lower case, in order, each once; common English words only if there are no others.

    Letters and their accents are put together first (NFC): on its own, an accent would end a word.
    """
    found = list(dict.fromkeys(word.lower() for word in _WORD.findall(unicodedata.normalize("NFC", text))))
    return [word for word in found if word not in _STOP] or found


def expression(text: str) -> str:
    """An FTS5 expression that matches documents with any word of `text`; empty where it has no word."""
    return " OR ".join(f'"{word}"' for word in words(text))


def best_passage(text: str, spans: IntArray, query: str) -> int:
    """Row of the passage `[n, 2]` with most of the query's words, each at its own length: long words say more.

    A word counts without its last three letters, which is roughly what the full-text index's stemmer takes away.
    """
    wanted = [word[: max(3, len(word) - 3)] for word in words(query)]
    scores = [sum(len(w) for w in wanted if w in text[start:stop].lower()) for start, stop in spans.tolist()]
    return max(range(len(scores)), key=scores.__getitem__)
