"""Sentences to hide needles in: of texts that are given, or made up."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

_WHO = (
    *(
        "The gardener",
        "A surveyor",
        "The night porter",
        "Our treasurer",
        "The ferry pilot",
        "A bookbinder",
    ),
    *(
        "The beekeeper",
        "An engineer",
        "The choir",
        "A young clerk",
        "The miller",
        "The harbor office",
    ),
)
_DOES = (
    *(
        "repaired",
        "counted",
        "described",
        "moved",
        "inspected",
        "painted",
        "sold",
        "borrowed",
        "measured",
    ),
    *("returned", "insured", "photographed"),
)
_WHAT = (
    *(
        "the old pumps",
        "nine barrels of salt",
        "a map of the valley",
        "the winter accounts",
        "two copper kettles",
    ),
    *(
        "the signal lamps",
        "a letter from the coast",
        "the orchard fence",
        "a crate of lenses",
        "the eastern bridge",
    ),
    *("some worn ropes", "the parish clock"),
)
_WHEN = (
    *(
        "before sunrise",
        "in the spring",
        "after the storm",
        "without delay",
        "on a Tuesday",
        "as agreed",
    ),
    *("for the second time", "near the station"),
)
_SUBJECTS = 4  # of `_WHO` and `_WHAT` in one made-up text, so that texts differ


def sentences_of(texts: Sequence[str], random: np.random.Generator) -> Iterator[str]:
    """Yield the sentences of texts without end, each with its stop; the texts come in a random
    order each time.
    """
    while True:
        for i in random.permutation(len(texts)):
            for sentence in texts[i].replace("\n", " ").split(". "):
                if sentence.strip():
                    yield f"{sentence.strip().rstrip('.')}."


def made_up_sentences(random: np.random.Generator) -> Iterator[str]:
    """Yield made-up sentences without end, about a few people and things that are drawn first."""
    who, what = (random.choice(words, _SUBJECTS, replace=False).tolist() for words in (_WHO, _WHAT))
    sentences = [" ".join(parts) + "." for parts in product(who, _DOES, what, _WHEN)]
    while True:
        yield sentences[random.integers(len(sentences))]
