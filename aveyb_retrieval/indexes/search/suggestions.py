"""Words of the index that may be meant by words of a query that are in no document."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.store.vocabulary import edits, swaps, within
from aveyb_retrieval.indexes.store.words import UNSPACED, WORD, cleaned, spelled

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.types import Kind

LOOKED_UP_WORDS = 50  # words of a query, the first ones, that others may be suggested for
SUGGESTED_WORDS = 3  # words in place of one that no document has
TEXTS_PER_SUGGESTION = 3  # texts in which a suggested word is looked for as it is written


def suggest(query: str, view: EngineView) -> dict[str, tuple[str, ...]]:
    """Words of the index in place of those words of a query that are in none of its documents, the
    nearest first.
    """
    rules, vocabulary = view.language, view.vocabulary
    suggested, query_words = {}, {*rules.words(query)}
    for word in islice(dict.fromkeys(WORD.findall(query)) if vocabulary else (), LOOKED_UP_WORDS):
        form, stored, unspaced = (
            rules.form(word),
            rules.in_order(word),
            UNSPACED.search(cleaned(word)),
        )
        left_out = query_words.isdisjoint((form, *stored))  # "what"
        if (
            left_out
            or not edits(form)
            or form.isdigit()
            or len(stored) != 1
            or unspaced
            or any(view.holding(stored))
        ):
            continue
        assert vocabulary is not None  # else there are no words to go through
        near = vocabulary.near(form, edits(form))
        first = near.keys() & swaps(form) | {
            candidate for candidate in near if within(form, candidate, 1)
        }
        order = sorted(
            near, key=lambda candidate: (candidate not in first, -near[candidate], candidate)
        )
        # some documents may be deleted
        held = (candidate for candidate in order if any(view.holding(rules.in_order(candidate))))
        if meant := tuple(islice(held, SUGGESTED_WORDS)):
            suggested[word] = tuple(
                dict.fromkeys(_as_written(candidate, view) for candidate in meant)
            )
    return suggested


def _as_written(form: str, view: EngineView) -> str:
    """A word, by its form, as it stands in one of the texts that are best by it, accents too,
    without capitals.
    """
    kind: Kind = "passage" if "passage" in view.encoding.kinds else "document"
    numbers = [
        number
        for number, _ in view.by_words(kind, view.language.in_order(form), TEXTS_PER_SUGGESTION)
    ]
    texts = (
        view.shown_passages(numbers) if kind == "passage" else view.documents(numbers, ("text",))
    )
    find = view.language.finder((), (form,))
    written = (
        text.text[word.start : word.stop] for text in texts.values() for word in find(text.text)
    )
    word = cleaned(next(written, form))
    # no "ss" for a sharp s
    return spelled(word, turkish=True) if view.language.name == "turkish" else word.lower()
