"""A needle in an index: one sentence in a long document, and a question that only this sentence
answers.

Every document of a length hides one needle of its own: a number or a word for a name that nothing
else mentions. So each question has one right document, and all others are distractors that answer
the same question for other names (RULER's single needles, Hsieh et al. 2024, turned to retrieval).
Documents without any needle come on top. The sentences are our own, so figures compare models and
ways to search with each other, not with published ones.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sentences import made_up_sentences, sentences_of

from aveyb_retrieval import Embedder, Retriever, build_index
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aveyb_retrieval.indexes.types import EmbedderLike

LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
DEPTHS = (0, 25, 50, 75, 100)
FORMS = ("number", "word")
FEW = 5  # "among the first ones"

SYSTEMS: dict[str, dict[str, Any]] = {
    "document vectors": {"mode": "dense", "granularity": "document"},
    "passage vectors": {"mode": "dense", "granularity": "passage"},
    "words": {"mode": "lexical"},
    "hybrid": {},
    "hybrid, reranked by MaxSim": {"rerank": "maxsim"},
}
"""Ways to search, as options of `Retriever.search`."""

_SYLLABLES = (
    *(
        "ba",
        "cor",
        "del",
        "fen",
        "gar",
        "hol",
        "im",
        "jen",
        "kel",
        "lor",
        "mi",
        "nor",
        "pel",
        "ros",
        "tav",
        "wyn",
    ),
)
_WORDS = (
    "lantern",
    "walnut",
    "harvest",
    "velvet",
    "compass",
    "thunder",
    "marble",
    "saffron",
    "anchor",
    "willow",
)


@dataclass(frozen=True)
class Needle:
    """A question, the document that answers it, and where.

    Attributes:
        query: the question.
        document: id of the document.
        span: characters `[start, end)` of its text that answer.
        depth: where that is, in percent of the text.
    """

    query: str
    document: str
    span: tuple[int, int]
    depth: int


@dataclass(frozen=True)
class Cell:
    """The result of one way to search at one length and depth; shares of the questions.

    Attributes:
        system: a key of `SYSTEMS`.
        length: tokens of the documents.
        depth: where the needles are, in percent of the text.
        document_first: the right document is the first of the corpus.
        document_in_few: it is among the first `FEW`.
        passage_first: of the right document's passages, the first one holds the needle; None for
            document vectors.
        passage_in_few: one of the first `FEW` holds it.
    """

    system: str
    length: int
    depth: int
    document_first: float
    document_in_few: float
    passage_first: float | None
    passage_in_few: float | None


def make_haystack(
    length: int,
    depths: Sequence[int],
    *,
    seeds: int,
    distractors: int,
    form: str,
    count: Callable[[str], int],
    texts: Sequence[str] = (),
) -> tuple[list[dict[str, str]], list[Needle]]:
    """Make documents of about `length` tokens, and the questions: one for each depth and seed.

    Args:
        length: tokens of a document, at least; it ends with the sentence that reaches it.
        depths: in percent, 0 (the needle is the first sentence) to 100 (the last).
        seeds: documents of each depth.
        distractors: documents without a needle.
        form: of `FORMS`.
        count: counts the tokens of a sentence.
        texts: where sentences come from; empty for made-up ones.

    Raises:
        ConfigError: an unknown form, or a depth outside of 0 to 100.
    """
    if form not in FORMS:
        raise ConfigError(f"form is {form!r}; choose one of {', '.join(FORMS)}")
    if wrong := [depth for depth in depths if not 0 <= depth <= 100]:
        raise ConfigError(f"depth is {wrong[0]}; it must be 0 to 100, in percent")
    rows, needles = [], []
    for number, depth in enumerate([*np.repeat(depths, seeds).tolist(), *[None] * distractors]):
        random = np.random.default_rng([length, number])
        sentences = _sentences(
            length, sentences_of(texts, random) if texts else made_up_sentences(random), count
        )
        document = f"{length}-{number}"
        if depth is not None:
            name = _name(number)
            answer = (
                str(random.integers(10**6, 10**7))
                if form == "number"
                else str(random.choice(_WORDS))
            )
            place = round(depth / 100 * len(sentences))
            start = len("".join(f"{sentence} " for sentence in sentences[:place]))
            sentence = f"The special {form} for {name} is {answer}."
            sentences.insert(place, sentence)
            span = (start, start + len(sentence))
            needles.append(Needle(f"What is the special {form} for {name}?", document, span, depth))
        rows.append({"_id": document, "text": " ".join(sentences), "document": document})
    return rows, needles


def run_needles(
    model: EmbedderLike | None = None,
    *,
    lengths: Sequence[int] = LENGTHS,
    depths: Sequence[int] = DEPTHS,
    seeds: int = 2,
    distractors: int = 5,
    form: str = FORMS[0],
    texts: Sequence[str] = (),
    progress: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Build an index of the documents of each length, and ask for every needle in every way of
    `SYSTEMS`.

    Args:
        model: makes the vectors; None: the embedded model.
        lengths: tokens of the documents, by the embedded model's tokenizer.
        depths: in percent.
        seeds: needles of each length and depth.
        distractors: documents of each length without a needle.
        form: of `FORMS`.
        texts: hide the needles in their sentences; empty: in made-up ones.
        progress: called with each cell that is done.

    Raises:
        ConfigError: an unknown form, or a depth outside of 0 to 100.
    """
    default = Embedder.load()
    model = default if model is None else model
    cells = []
    for length in lengths:
        rows, needles = make_haystack(
            length,
            depths,
            seeds=seeds,
            distractors=distractors,
            form=form,
            count=lambda sentence: len(default.tokenizer.encode_ids(f" {sentence}")),
            texts=texts,
        )
        with tempfile.TemporaryDirectory() as folder:
            index = Path(folder) / "index"
            # with token vectors, so that MaxSim encodes no document again
            build_index(rows, index, model=model, token_vectors="int8")
            with Retriever.load(index, model=model) as retriever:
                for system, options in SYSTEMS.items():
                    found = [_look_for(needle, retriever, options) for needle in needles]
                    for depth in depths:
                        of_depth = [
                            row
                            for row, needle in zip(found, needles, strict=True)
                            if needle.depth == depth
                        ]
                        cells.append(
                            _cell(system, length, depth, np.array(of_depth, dtype=np.float64))
                        )
                        progress(cells[-1])
    return cells


def _look_for(needle: Needle, retriever: Any, options: dict[str, Any]) -> list[float]:
    """The ranks of the right document and of the passage with the needle in it, from 1; NaN where
    there are none.
    """
    documents = [hit.id for hit in retriever.search(needle.query, FEW, **options)]
    document = documents.index(needle.document) + 1 if needle.document in documents else np.nan
    if options.get("granularity") == "document":
        return [document, np.nan]
    here = {"document": needle.document}
    # of rankings of documents
    options = {name: value for name, value in options.items() if name != "granularity"}
    hits = retriever.search(needle.query, FEW, unit="passage", fold=False, filter=here, **options)
    holding = [rank for rank, hit in enumerate(hits, start=1) if _holds(hit.span, needle.span)]
    return [document, holding[0] if holding else np.nan]


def _holds(passage: tuple[int, int], needle: tuple[int, int]) -> bool:
    """Whether most of the needle is in a passage."""
    return 2 * (min(passage[1], needle[1]) - max(passage[0], needle[0])) > needle[1] - needle[0]


def _cell(system: str, length: int, depth: int, ranks: np.ndarray) -> Cell:
    """Shares of the ranks `[questions, 2]` of documents and passages."""
    first, few = (ranks <= 1).mean(axis=0).tolist(), (ranks <= FEW).mean(axis=0).tolist()
    passages = SYSTEMS[system].get("granularity") != "document"
    return Cell(
        system,
        length,
        depth,
        first[0],
        few[0],
        first[1] if passages else None,
        few[1] if passages else None,
    )


def _sentences(length: int, sentences: Iterator[str], count: Callable[[str], int]) -> list[str]:
    found: list[str] = []
    while length > 0:
        found.append(next(sentences))
        length -= count(found[-1])
    return found


def _name(number: int) -> str:
    """A name that is different for every number."""
    base = len(_SYLLABLES)
    return "".join(_SYLLABLES[number // base**i % base] for i in range(3)).capitalize()


def heat_maps(cells: Sequence[Cell]) -> list[tuple[str, list[int], dict[int, list[float]]]]:
    """Arrange cells as maps: a title, the depths, and the shares found at them by length.

    Each way to search has two maps: the right document first of the corpus, and its needle in the
    first passage.
    """
    maps = []
    for system in dict.fromkeys(cell.system for cell in cells):
        own = [cell for cell in cells if cell.system == system]
        depths = sorted({cell.depth for cell in own})
        for what, measure in (
            ("document first", "document_first"),
            ("passage first", "passage_first"),
        ):
            shares = {(cell.length, cell.depth): getattr(cell, measure) for cell in own}
            if None not in shares.values():
                lengths = sorted({cell.length for cell in own})
                rows = {length: [shares[length, depth] for depth in depths] for length in lengths}
                maps.append((f"{system}: {what}", depths, rows))
    return maps
