"""Copies: texts of the same words are folded, texts of which anything else differs never are."""

from __future__ import annotations

import json
import random
import re
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.store import copies
from aveyb_retrieval.indexes.store.copies import NO_WORDS, copy_digest, segment_copy_digests
from aveyb_retrieval.indexes.store.segments import Layout, Segments, Text
from aveyb_retrieval.indexes.store.tables import Tables
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CLAUSE = (
    "The Tenant may end this lease by giving three months' written notice, not later than 31 March"
    " 2025."
)
SAME = [
    CLAUSE.upper(),
    CLAUSE.replace(" ", "  \n"),
    CLAUSE.replace(",", " \N{EN DASH}"),
    CLAUSE.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}").rstrip("."),
    f"**{CLAUSE}**",
    f"# “{CLAUSE}”",
    CLAUSE.replace("notice", "no\N{SOFT HYPHEN}tice").replace("lease", "\N{ZERO WIDTH SPACE}lease"),
    CLAUSE.replace("written", "writ-\nten"),
    CLAUSE.replace("2025", "２０２５"),  # full width  # noqa: RUF001
    f"\N{BULLET} {CLAUSE}",
]
CHANGES = {
    "number word": ("three", "six"),
    "number for a word": ("three", "3"),
    "no number": ("three ", ""),
    "negation": ("may", "may not"),
    "word of negation": ("The", "No"),
    "modal verb": ("may", "shall"),
    "party": ("Tenant", "Landlord"),
    "unit": ("months", "weeks"),
    "date": ("31", "30"),
    "year": ("2025", "2026"),
    "name": ("March", "May"),
    "one letter": ("months'", "month's"),
}
DIFFERENT = [
    ("a fee of 1.5 %", "a fee of 15 %"),
    ("a fee of 1.5 %", "a fee of 1,5 %"),
    ("a fee of .5 percent", "a fee of 5 percent"),
    ("a fee of 5 %", "a fee of 5"),
    ("pay $5 each", "pay €5 each"),
    ("a result of -5 million", "a result of 5 million"),
    ("a result of (5) million", "a result of 5 million"),
    ("stored at \N{MINUS SIGN}4 °C", "stored at 4 °C"),
    ("x < 4", "x > 4"),
    ("if a != b", "if a = b"),
    ("return -y", "return y"),
    ("written in C", "written in C#"),
    ("written in C", "written in C++"),
    ("they were late", "they we're late"),
    ("re-sign the contract", "resign the contract"),
    ("an area of 5 m2", "an area of 5 m²"),
    ("2³ is eight", "23 is eight"),
    ("the dose is due", "the dose is due?"),
    ("the buyer pays the seller", "the seller pays the buyer"),
    ("and/or", "and or"),
    ("in Maßen", "in Massen"),
    ("12 34", "1 234"),
    ("on 2/3", "on 2 3"),
    ("a tolerance of 1e-5", "a tolerance of 1e5"),
    ("pages 5 \N{EN DASH} 7", "pages 5, 7"),
    ("stored at - 4 °C", "stored at 4 °C"),
    ("a loss of ( 5 ) million", "a loss of 5 million"),
    ("5' wide", '5" wide'),
    ("about ~5 days", "about 5 days"),
    ("may ~~not~~ end", "may not end"),
    ("5 * 3 pieces", "5 3 pieces"),
    ("a plant of 5 MW", "a plant of 5 mW"),
    ("a line of 100 Mb", "a line of 100 MB"),
]


@pytest.mark.parametrize("text", SAME)
def test_case_spaces_and_punctuation_do_not_count(text: str) -> None:
    assert copy_digest(CLAUSE) == copy_digest(text)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_word_counts(change: str) -> None:
    old, new = CHANGES[change]
    assert old in CLAUSE
    assert copy_digest(CLAUSE) != copy_digest(CLAUSE.replace(old, new, 1))


@pytest.mark.parametrize("pair", DIFFERENT)
def test_numbers_and_signs_count(pair: tuple[str, str]) -> None:
    first, second = pair
    assert copy_digest(first) != copy_digest(second)


def test_a_difference_at_the_end_of_a_long_text_counts() -> None:
    long = "word " * 5000
    six = copy_digest(f"{long} six.")
    assert copy_digest(f"{long} five.") != six == copy_digest(f"{long} SIX!")
    assert copy_digest("...") == copy_digest("") == NO_WORDS, "without a word nothing is said"
    assert -(1 << 63) <= six < 1 << 63


# Words that depend on what is before or behind a blank, and some that look as if they did.
NEIGHBORS = [
    "a house - 5 rooms",
    "- 5 rooms",
    "loss\n- 5",
    "from 3 \N{EN DASH} 5 to 9 - x",
    "a balance of ( 5 ) and ( €.7 )",
    "5 * 3 * 2 and 5* 3 and 5 *3 and **5** 3",
    "a plant of 5 MW and of 5\tMW, 5  MW",
    "100 MB, 100 Mbit, 100 Mr. Brown, 7 Mega",
    "5\N{ZERO WIDTH SPACE} MB",
    "5 M-\nB of 5 k-\nB of house-\nhold of two-\n5",
    "\u0665 MB of \uff15 \uff2d\uff22 of (\n\u0665",
    "x \0 - 5 \0 MB",
    "\x1c - 5 x\x1c - 5 5\xa0MB",
    "ΑΣ ΑΣ. \N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM} - 5",
]


def test_many_texts_have_the_digests_of_each() -> None:
    rng = random.Random(4)
    words = [word for text in NEIGHBORS for word in text.split(" ")]
    mixed = [" ".join(rng.choices(words, k=rng.randrange(12))) for _ in range(400)]
    texts = list[Text]()
    for text in [*NEIGHBORS, *mixed, *("\n".join(mixed[i : i + 40]) for i in range(0, 400, 40))]:
        at_blanks = [0, len(text), *(i for i, letter in enumerate(text) if letter in " \n")]
        edges = at_blanks if rng.random() < 0.8 else range(len(text) + 1)
        spans = np.array([[0, len(text)], *(sorted(rng.choices(edges, k=2)) for _ in range(5))])
        naming = ("50 -", rng.choice(["100", "2 *"]), rng.choice([text, "GB -"]))
        texts.append(("100", text, spans, ["MB - 5"] * len(spans), naming))
    layout = Layout.of(texts)
    segments = Segments.of(layout.pieces)
    of_texts, of_passages = segment_copy_digests(segments, layout.bodies, layout.passages)
    assert of_texts.tolist() == [copy_digest(text) for _, text, _, _, _ in texts]
    assert of_passages.tolist() == [
        copy_digest(text[start:stop]) for _, text, spans, _, _ in texts for start, stop in spans
    ]


def test_the_words_of_many_texts_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "One sentence with 1.5 % of it. Another sentence. One more of it, with 5 MB. "
    stops = [30, 48, len(text)]
    spans = np.array([[0, len(text)], *([*pair] for pair in pairwise([0, *stops]))])
    texts: list[Text] = [
        ("", text * 100, spans, [""] * len(spans), (f"{i} MB/{i}.txt", "", text)) for i in range(50)
    ]
    expected = [copy_digest(text[start:stop]) for start, stop in spans.tolist()]
    looked_at = record_calls(monkeypatch, copies, "_words_in")
    layout = Layout.of(texts)
    _, of_passages = segment_copy_digests(
        Segments.of(layout.pieces), layout.bodies, layout.passages
    )
    assert of_passages.tolist() == expected * 50
    assert sum(len(call["text"]) for call in looked_at) < 3 * len(text)


def test_texts_without_words_are_copies_of_nothing(tmp_path: Path) -> None:
    rows = [{"_id": f"d{i}", "title": "Notice", "text": "... --- ..."} for i in range(4)]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        assert len(retriever.search("notice", k=9)) == 4


def test_copies_are_folded_without_reading_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole texts are compared by what the build stored, of documents with and without passages."""
    long = "The pump is closed before the filter is opened. " * 40
    rows = [
        {"_id": "a", "text": long},
        {"_id": "b", "text": long.upper().replace(" ", "  ")},
        {"_id": "c", "text": f"{long} It leaks."},
        {"_id": "d", "text": "Twelve months' notice"},
        {"_id": "e", "text": "twelve MONTHS' notice!"},
    ]
    reads = record_calls(monkeypatch, Tables, "read_documents")
    for granularity in ("both", "passage", "document"):
        root = tmp_path / granularity
        build_index(rows, root, model=FakeEmbedder(), granularity=granularity)
        reads.clear()
        with Retriever.load(root, model=FakeEmbedder()) as retriever:
            hits = retriever.search("pump filter notice", k=9)
            folded = sorted(sorted([hit.id, *hit.duplicates]) for hit in hits)
            assert folded == [["a", "b"], ["c"], ["d", "e"]]
        assert not any("text" in call["parts"] for call in reads)


def test_clauses_that_say_something_else_are_all_shown(tmp_path: Path) -> None:
    clauses = [CLAUSE, *(CLAUSE.replace(*change, 1) for change in CHANGES.values())]
    rows = [{"_id": f"clause {i}", "text": text} for i, text in enumerate([*clauses, *SAME[:2]])]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder(split_size=64))
    options: list[dict[str, Any]] = [
        {"unit": unit, "mode": mode}
        for unit in ("passage", "document")
        for mode in ("hybrid", "dense", "lexical")
    ]
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder(split_size=64)) as retriever:
        for option in options:
            hits = retriever.search("written notice", k=20, **option)
            assert len(hits) == len(clauses), option
            assert sorted(len(hit.duplicates) for hit in hits) == [0] * (len(clauses) - 1) + [2], (
                option
            )
            assert len(retriever.search("written notice", k=20, fold=False, **option)) == len(rows)
        assert len(retriever.rank(["written notice"], k=20)[0]) == len(rows), (
            "an evaluation never folds"
        )
        first = retriever.search("written notice", k=4)
        pages = [
            hit
            for start in range(0, 4, 2)
            for hit in retriever.search("written notice", k=2, offset=start)
        ]
        assert [hit.id for hit in pages] == [hit.id for hit in first], "folded before pages are cut"


def changed(clause: str, draw: random.Random) -> Iterator[str]:
    """A clause with one change each that gives it another meaning, of those that its
    words allow.
    """

    def swapped(pattern: str, new: Callable[[re.Match[str]], str]) -> Iterator[str]:
        if found := list(re.finditer(pattern, clause)):
            match = draw.choice(found)
            yield clause[: match.start()] + new(match) + clause[match.end() :]

    yield from swapped(r"\d+", lambda m: str(int(m[0]) + 1))
    yield from swapped(r"\b(one|two|three|five|six|ten|thirty|sixty|ninety)\b", lambda _: "eleven")
    yield from swapped(r"\b(shall|may|will|must)\b", lambda m: f"{m[0]} not")
    yield from swapped(r"\b(shall|may|will|must)\b", lambda m: {"may": "shall"}.get(m[0], "may"))
    yield from swapped(r"\b(any|all|each|either)\b", lambda _: "no")
    yield from swapped(r"\b(days|months|years|hours)\b", lambda _: "weeks")
    yield from swapped(
        r"\b(Party|Company|Licensee|Distributor|Agent)\b", lambda _: "Customer's Guarantor"
    )
    yield from swapped(r"\b(January|March|April|June|July|October)\b", lambda _: "August")
    words = clause.split(" ")
    places = [
        i
        for i, (a, b) in enumerate(pairwise(words))
        if a.isalpha() and b.isalpha() and a.lower() != b.lower()
    ]
    if places:
        at = draw.choice(places)
        yield " ".join([*words[:at], words[at + 1], words[at], *words[at + 2 :]])


def test_contracts_with_one_change_are_not_folded(shared: Path) -> None:
    draw, pairs = random.Random(0), 0
    with (shared / "data" / "cuad-long" / "corpus.jsonl").open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, 60)]
    for clause in (
        part for text in texts for part in re.split(r"\n\s*\n", text) if 80 < len(part) < 2000
    ):
        for other in changed(clause, draw):
            assert copy_digest(clause) != copy_digest(other), (clause, other)
            pairs += 1
        if pairs >= 2000:
            return
    raise AssertionError(f"{pairs} pairs")
