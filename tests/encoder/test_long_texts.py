"""A long text is read in pieces and sections, with the same tokens and passages."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.embedders import embedder as embedders
from aveyb_retrieval.encoder.text import passages
from aveyb_retrieval.encoder.text.passages import PassageSize, cut_passages
from aveyb_retrieval.encoder.text.pieces import cut_pieces

ALPHABET = "ab cD.e\n\n\t  fg,\u00e9e\u0308\u65e5\u672c\u3002\u03a3\u03c21-#|"


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.load()


def texts() -> list[str]:
    draw = random.Random(5)
    sizes = [draw.randint(0, 2000) for _ in range(20)]
    return ["".join(draw.choice(ALPHABET) for _ in range(size)) for size in sizes]


def test_pieces_are_the_text_and_have_its_tokens(embedder: Embedder) -> None:
    for text in texts():
        pieces = list(cut_pieces(text, 37))
        assert "".join(piece for _, piece in pieces) == text
        ids, offsets = embedder.tokenizer.encode(text)
        parts = [embedder.tokenizer.encode(piece) for _, piece in pieces]
        assert [*ids] == [i for part, _ in parts for i in part]
        moved = [
            span + start
            for (start, _), (_, part) in zip(pieces, parts, strict=True)
            for span in part
        ]
        assert np.array(moved).reshape(-1, 2).tolist() == offsets.tolist()


def test_passages_do_not_depend_on_how_much_is_looked_at(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = PassageSize(16, 4)
    cuts = [cut_passages(text, embedder.tokenizer.encode(text)[1], size) for text in texts()]
    monkeypatch.setattr(passages, "_NUMPY_BATCH_LENGTH", 29)
    for text, before in zip(texts(), cuts, strict=True):
        after = cut_passages(text, embedder.tokenizer.encode(text)[1], size)
        assert after.spans.tolist() == before.spans.tolist()
        assert after.ranges.tolist() == before.ranges.tolist()


def test_a_section_is_read_like_a_text(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(f"The pump {n} of the harbour is closed on day {n % 28}." for n in range(90))
    (whole,) = embedder.encode_documents([("", text)])
    counts: list[int] = []
    monkeypatch.setattr(embedders, "SECTION_TOKENS", 512)
    (parted,) = embedder.with_watch(counts.append).encode_documents([("", text)])
    assert parted.spans.tolist() == whole.spans.tolist()
    assert sum(counts) == parted.n_tokens > 1024
    first = whole.spans[:, 1] < len(text) // 3  # passages of the first section
    np.testing.assert_allclose(parted.passages[first], whole.passages[first], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(parted.passages, axis=1), 1, atol=1e-5)


def test_a_question_has_the_vector_of_a_document(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its length: empty, of one section, of several."""
    assert embedder.prompts["query"] == embedder.prompts["document"]
    sentences = [f"The pump {n} of the harbour is closed." for n in range(90)]
    for size in (1 << 20, 256):
        monkeypatch.setattr(embedders, "SECTION_TOKENS", size)
        for count in (0, 1, 7, 90):
            text = " ".join(sentences[:count])
            counts: list[int] = []
            (vector,) = embedder.with_watch(counts.append).encode_queries([text])
            (document,) = embedder.encode_documents([("", text)])
            np.testing.assert_allclose(vector, document.vector, atol=1e-6)
            assert sum(counts) == document.n_tokens
            assert np.linalg.norm(vector) == pytest.approx(1.0 if count else 0.0)


def test_an_initial_before_a_wide_blank_is_a_text_like_others() -> None:
    text = "by J.\u2003Smith and A.\u2003B. Jones. Then the gate closed."
    offsets = np.array([[i, i + 1] for i in range(len(text))])
    assert len(cut_passages(text, offsets, PassageSize(16)))
