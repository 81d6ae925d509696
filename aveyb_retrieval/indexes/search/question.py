"""The first step of a search: what a question asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.operators import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engine import EngineView, Selection
    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.store.words import Finder, Language
    from aveyb_retrieval.indexes.types import FloatArray, Kind

NO_VECTOR = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class Question:
    """One question, and the documents among which its answer is looked for.

    Attributes:
        text: The question without signs of operators; "" where only a vector was given.
        words: Its words, as the index looks them up.
        variants: Other forms that the words are found by: with and without accents.
        conditions: What operators ask for.
        unmet: Conditions that must be fulfilled and that nothing fulfills, as they were written;
            all as one, where each by itself is fulfilled.
        selection: The documents that are searched; None for all.
        vector: Its unit vector `[d]`, or `NO_VECTOR`.
        known: How well the model knows its text, 0 to 1: what vectors weigh next to words.
    """

    text: str = ""
    words: Sequence[str] = ()
    variants: Sequence[str] = ()
    conditions: Sequence[Sought] = ()
    unmet: Sequence[str] = ()
    selection: Selection | None = None
    vector: FloatArray = field(default_factory=lambda: NO_VECTOR)
    known: float = 1.0

    @property
    def search_words(self) -> list[str]:
        """The words that find candidates: of the question, and of what must be there."""
        required = [
            word for sought in self.conditions if sought.condition.must for word in sought.words
        ]
        return list(dict.fromkeys([*self.words, *self.variants, *required]))

    def finder(self, rules: Language) -> Finder:
        """Make what finds the question's words in texts, and those that fulfilled a condition."""
        required = [sought for sought in self.conditions if sought.condition.must]
        exact = {
            word
            for sought in required
            if not sought.forms
            for phrase in sought.phrases
            for word in phrase
        }
        forms = {form for sought in required for form in sought.forms}
        stems = {
            word
            for sought in required
            if sought.forms
            for phrase in sought.phrases
            for word in phrase
        }
        return rules.finder({*(set(self.words) - stems), *self.variants, *exact}, forms)


def read_question(text: str, rules: Language, selection: Selection | None) -> Question:
    """Read a question whose signs are text, by an index's rules of language."""
    return Question(text, rules.words(text), rules.second_words(text), selection=selection)


def read_operators(
    text: str, view: EngineView, rules: Language, selection: Selection | None, unit: Kind
) -> Question:
    """Read a question with operators: its selection is what fulfills its conditions."""
    plain, conditions = ask(text, view)
    if conditions:
        selection = view.narrow(selection, unit, conditions)
    unmet = () if view.count(unit, selection) else unmet_conditions(view, conditions, unit)
    return Question(
        plain, rules.words(plain), rules.second_words(plain), conditions, tuple(unmet), selection
    )


def unmet_conditions(view: EngineView, conditions: Sequence[Sought], unit: Kind) -> list[str]:
    """Say which conditions nothing in the whole index fulfills, as they were written."""

    def is_unmet(group: Sequence[Sought]) -> bool:
        return not view.count(unit, view.narrow(None, unit, group))

    required = [sought for sought in conditions if sought.condition.must]
    unmet = [[sought] for sought in required if is_unmet([sought])]
    if not unmet:
        groups = [group for group in (required, [*conditions]) if group]
        unmet = [group for group in groups if is_unmet(group)][:1]
    return [" ".join(sought.condition.written for sought in group) for group in unmet]
