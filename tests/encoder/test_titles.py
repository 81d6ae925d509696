"""The title is read again at the head of every split, and passages stay the tokens that
they were.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.text.passages import Cuts, PassageSize, repeat_title
from tests.encoder.models import save_byte_model

SIZE = 32
TEXT = "".join(f"Sentence {i} is about {'xyz'[i % 3] * (i % 11)}. " for i in range(40))


@st.composite
def documents(draw: st.DrawFn) -> tuple[np.ndarray, Cuts, int]:
    """Tokens (each its own place), passages that may overlap, and the length of the title."""
    length = draw(st.integers(1, 200))
    begins = sorted({0, *draw(st.lists(st.integers(1, length), max_size=12))} - {length})
    ends = [*begins[1:], length]
    starts = [max(0, begin - draw(st.integers(0, 5))) if begin else 0 for begin in begins]
    ranges = np.array([starts, ends], dtype=np.int64).T
    cuts = Cuts(ranges, np.zeros_like(ranges), ("",) * len(ranges))
    return np.arange(length, dtype=np.int32), cuts, draw(st.integers(0, min(length, 20)))


@given(documents())
def test_every_split_begins_with_the_title_and_nothing_else_changes(
    document: tuple[np.ndarray, Cuts, int],
) -> None:
    ids, cuts, n_title = document
    read, read_cuts = repeat_title(ids, cuts, n_title, SIZE)
    n = min(n_title, SIZE // 4)
    if len(ids) <= SIZE or not n:
        assert read is ids and read_cuts is cuts
        return
    repeated = np.zeros(len(read), dtype=bool)
    for first in range(SIZE, len(read), SIZE):
        assert read[first : first + n].tolist() == list(range(n))
        repeated[first : first + n] = True
        assert len(read) > first + n, "no split of a title alone"
    assert read[~repeated].tolist() == ids.tolist()
    places = np.where(repeated, -1, read)
    for (start, end), (first, last) in zip(
        cuts.ranges.tolist(), read_cuts.ranges.tolist(), strict=True
    ):
        own = places[first:last]
        assert own[own >= 0].tolist() == list(range(start, end))
        assert not repeated[last - 1], "a title is read before what it belongs to"
    assert read_cuts.ranges[0, 0] == 0
    assert read_cuts.ranges[-1, 1] == len(read)
    together = cuts.ranges[1:, 0] == cuts.ranges[:-1, 1]
    assert (read_cuts.ranges[1:, 0] == read_cuts.ranges[:-1, 1])[together].all(), (
        "no token between passages"
    )


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """A random model of one token a byte, S = 32, with prompts."""
    folder = save_byte_model(
        tmp_path_factory.mktemp("model"), query="", document=">", split_size=SIZE
    )
    return Embedder.load(folder, passage_size=PassageSize(24))


def encoded(
    embedder: Embedder, title: str, text: str, size: PassageSize
) -> tuple[np.ndarray, np.ndarray, int]:
    (document,) = embedder.with_passage_size(size).encode_documents([(title, text)])
    return document.passages, document.spans, document.n_tokens


def test_a_title_reaches_passages_behind_the_first_split(embedder: Embedder) -> None:
    """Without it these know of the title only what their split retrieves."""
    passages, spans, n_tokens = encoded(embedder, "Pump\n", TEXT, PassageSize(24))
    plain, plain_spans, plain_tokens = encoded(
        embedder, "Pump\n", TEXT, PassageSize(24, titled=False)
    )
    assert np.array_equal(spans, plain_spans), "the same characters of the text"
    later = -(-(plain_tokens - SIZE) // (SIZE - len(">Pump\n")))
    assert n_tokens == plain_tokens + later * len(">Pump\n")
    assert np.abs(passages[0] - plain[0]).max() <= 1e-6, "the first split was read as before"
    assert (np.abs(passages[2:] - plain[2:]).max(axis=1) > 1e-3).all()


def test_without_a_title_nothing_is_repeated(embedder: Embedder) -> None:
    """A prompt alone says nothing about the document."""
    one, other = (
        encoded(embedder, "", TEXT, PassageSize(24, titled=titled)) for titled in (None, False)
    )
    assert np.array_equal(one[0], other[0])
    assert one[2] == other[2] == len(TEXT) + 1


def test_a_title_longer_than_a_quarter_of_a_split_is_repeated_in_part(embedder: Embedder) -> None:
    title = "A title that is longer than a whole split of this model\n"
    _, _, n_tokens = encoded(embedder, title, TEXT, PassageSize(24))
    plain = 1 + len(title) + len(TEXT)
    assert n_tokens == plain + SIZE // 4 * -(-(plain - SIZE) // (SIZE - SIZE // 4))


def test_splits_as_passages_are_those_of_the_paper(embedder: Embedder) -> None:
    (document,) = embedder.with_passage_size(None).encode_documents([("Pump\n", TEXT)])
    assert document.n_tokens == 1 + len("Pump\n") + len(TEXT)
