"""Token vectors in an index: what is kept of them, what a search makes of them, and every change of
an index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Embedder, Retriever, build_index, verify_index
from aveyb_retrieval.encoder.network.token_codec import (
    CODE_DIMENSIONS,
    TokenCodec,
    late_interaction_numpy,
)
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.search.confidence import MARGIN
from aveyb_retrieval.indexes.search.ranking import MAXSIM_WEIGHT, PASSAGE_MAXSIM_WEIGHT
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.search.snapshot import Snapshot

QUERY = "word3 word17 word40 word99"
STORAGES = ("int8", "1bit")


def snapshot(retriever: Retriever) -> Snapshot:
    return retriever._engine.snapshot


def stored(root: Path, embedder: Any) -> dict[str, list[np.ndarray]]:
    """The codes of every passage of every document, by its id, as an index keeps them."""
    found: dict[str, list[np.ndarray]] = {}
    with Retriever.load(root, model=embedder) as retriever:
        opened = snapshot(retriever)
        assert opened.tokens is not None
        for doc, document in opened.documents(opened.tables.numbers("document").tolist()).items():
            numbers = (
                [doc]
                if opened.info.granularity == "document"
                else opened.tables.passage_numbers([doc])
            )
            block = opened.tokens.gather(np.array(numbers, dtype=np.int64))
            found[document.id] = [block.codes[a:b] for a, b in block.ranges.tolist()]
    return found


def expected(
    rows: list[dict[str, Any]], embedder: FakeEmbedder, storage: str
) -> dict[str, list[np.ndarray]]:
    """The same, from a model that encodes whole documents now."""
    codec = TokenCodec(embedder.dim, storage)
    found = {}
    for row in rows:
        prefix = f"{row['title']}\n" if row.get("title") else ""
        (vectors,) = embedder.token_vectors([prefix + row["text"]], prompt="document")
        codes = codec.encode(vectors)
        found[row["_id"]] = [
            codes[a : a + embedder.split_size] for a in range(0, len(codes), embedder.split_size)
        ]
    return found


def assert_same(found: dict[str, list[np.ndarray]], wanted: dict[str, list[np.ndarray]]) -> None:
    assert found.keys() == wanted.keys()
    for name, passages in wanted.items():
        assert len(found[name]) == len(passages), name
        for one, other in zip(found[name], passages, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)


# --- the codec -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "width"), [(16, 16), (100, 96), (256, CODE_DIMENSIONS), (384, CODE_DIMENSIONS)]
)
def test_codes_have_the_documented_size_and_stand_for_the_documented_vectors(
    dim: int, width: int
) -> None:
    vectors = np.random.default_rng(0).standard_normal((50, dim), np.float32)
    for storage, row_bytes in (("int8", width), ("1bit", width // 8)):
        codec = TokenCodec(dim, storage)
        codes = codec.encode(vectors)
        assert (codes.shape, codes.dtype) == ((50, row_bytes), codec.dtype)
        kept = vectors @ codec.projection.T
        kept /= np.linalg.norm(kept, axis=1, keepdims=True)
        whole = codec.decode(codes)
        np.testing.assert_array_equal(
            whole, np.rint(kept * 127) if storage == "int8" else np.where(kept >= 0, 1, -1)
        )
        unit = 1 / 127 if storage == "int8" else width**-0.5
        np.testing.assert_allclose(
            codec.query(vectors) @ whole.T, kept @ (whole * unit).T, atol=1e-5
        )
    rows = codec.projection @ codec.projection.T * (1 << (dim - 1).bit_length()) / dim
    assert np.abs(np.diag(rows) - 1).max() < 1e-5
    if dim & (dim - 1) == 0:  # a power of two: the rows of a rotation
        np.testing.assert_allclose(rows, np.eye(width), atol=1e-6)


@pytest.mark.parametrize("storage", STORAGES)
def test_torch_and_numpy_score_the_same(storage: str) -> None:
    torch = pytest.importorskip("torch")
    from aveyb_retrieval.kernels.maxsim import late_interaction

    rng, codec = np.random.default_rng(0), TokenCodec(256, storage)
    query, vectors = (
        rng.standard_normal((7, 256), np.float32),
        rng.standard_normal((50, 256), np.float32),
    )
    assert (
        np.abs(codec.encode(torch.from_numpy(vectors)).astype(int) - codec.encode(vectors)).max()
        <= 1
    )
    codes, starts, asked = codec.encode(vectors), np.array([0, 20, 20, 50]), codec.query(query)
    found = late_interaction_numpy(asked, codec.decode(codes), starts[:-1], starts[1:])
    rows = torch.from_numpy(codec.decode(codes)).float().requires_grad_()
    wanted = (
        late_interaction(torch.from_numpy(asked), rows, torch.from_numpy(starts)).detach().numpy()
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_projection_is_the_same_everywhere() -> None:
    signs = np.sign(TokenCodec(16, "int8").projection).astype(int)
    assert signs[0].tolist() == [-1, 1, 1, 1, -1, 1, -1, -1, 1, 1, 1, -1, -1, -1, -1, 1]
    rows = np.eye(256, dtype=np.float32)
    near, far = rows[:1] + np.float32(0.3) * rows[1:2], rows[2:3]
    codec = TokenCodec(256, "1bit")
    scores = (codec.query(rows[:1]) @ codec.decode(codec.encode(np.concatenate([near, far]))).T)[
        0
    ].tolist()
    assert scores[0] > 0.5 > abs(scores[1])


@pytest.mark.parametrize(
    ("dim", "storage", "reason"), [(16, "int4", "must be one of int8, 1bit"), (4, "int8", "have 4")]
)
def test_unknown_codecs_are_refused(dim: int, storage: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TokenCodec(dim, storage)


# --- what is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
def test_every_change_keeps_the_token_vectors_of_every_document(
    storage: str, tmp_path: Path, embedder: FakeEmbedder
) -> None:
    root, rows = tmp_path / "ix", make_documents(60)
    build_index(rows, root, model=embedder, token_vectors=storage)
    assert_same(stored(root, embedder), expected(rows, embedder, storage))

    more = make_documents(20, seed=3, first=60)
    one_change.add(more, root, model=embedder)
    rows += more
    grown = [{**row, "text": row["text"] + " word1 word2 word3"} for row in rows[10:30]]
    one_change.upsert(grown, root, model=embedder)
    rows[10:30] = grown
    one_change.delete(root, [row["_id"] for row in rows[5:15]])
    del rows[5:15]
    assert_same(stored(root, embedder), expected(rows, embedder, storage))
    one_change.compact(root)
    before = answers(root, embedder)
    one_change.compact(root)
    assert_same(stored(root, embedder), expected(rows, embedder, storage))
    assert answers(root, embedder) == before
    assert problems_of(root) == []


def answers(root: Path, embedder: Any) -> list[Any]:
    with Retriever.load(root, model=embedder) as retriever:
        hits = retriever.search(
            [QUERY, "word5 word6"], k=20, unit="passage", rerank="token-vectors", fold=False
        )
        return [(hit.id, hit.span, hit.score) for found in hits for hit in found]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_build_that_dies_is_resumed_with_the_same_token_vectors(
    storage: str, tmp_path: Path, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    rows, root = make_documents(40), tmp_path / "ix"
    monkeypatch.setattr("aveyb_retrieval.indexes.changes.ingest.BATCH_DOCUMENTS", 4)
    encode = FakeEmbedder.encode_documents

    def dying(self: FakeEmbedder, documents: Any) -> Iterator[Any]:
        for number, document in enumerate(encode(self, documents)):
            if number == 18:
                raise Killed
            yield document

    monkeypatch.setattr(FakeEmbedder, "encode_documents", dying)
    with pytest.raises(Killed):
        build_index(rows, root, model=embedder, token_vectors=storage)
    monkeypatch.setattr(FakeEmbedder, "encode_documents", encode)
    with pytest.raises(ConfigError, match="token_vectors was"):
        build_index(rows, root, model=embedder)
    assert build_index(rows, root, model=embedder, token_vectors=storage).resumed
    assert_same(stored(root, embedder), expected(rows, embedder, storage))
    assert verify_index(root).problems == []


def test_an_index_of_documents_alone_keeps_the_tokens_of_documents(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    rows, root = make_documents(30), tmp_path / "ix"
    build_index(rows, root, model=embedder, granularity="document", token_vectors="int8")
    whole = {
        name: [np.concatenate([np.zeros((0, 16), np.int8), *passages])]
        for name, passages in expected(rows, embedder, "int8").items()
    }
    assert_same(stored(root, embedder), whole)
    with Retriever.load(root, model=embedder) as retriever:
        hit, *_ = retriever.search(rows[3]["text"], k=3, rerank="token-vectors")
        assert hit.id == rows[3]["_id"]
    one_change.delete(root, ["doc-3"])
    one_change.compact(root)
    assert verify_index(root).problems == []


# --- searching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("unit", ["document", "passage"])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_stored_vectors_give_the_maxsim_of_vectors_encoded_now_and_rounded(
    storage: str,
    unit: Any,
    mode: Any,
    tmp_path: Path,
    embedder: FakeEmbedder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, root = make_documents(60), tmp_path / "ix"
    build_index(rows, root, model=embedder, token_vectors=storage)
    codec = TokenCodec(embedder.dim, storage)
    (query,) = embedder.token_vectors([QUERY], prompt="query")
    asked = codec.query(query)
    with Retriever.load(root, model=embedder) as retriever:
        first = retriever.search(QUERY, k=20, unit=unit, mode=mode, candidates=20, passages=1)
        with monkeypatch.context() as patch:
            patch.setattr(FakeEmbedder, "token_vectors", only_queries(FakeEmbedder.token_vectors))
            hits = retriever.search(
                QUERY, k=20, unit=unit, mode=mode, candidates=20, rerank="maxsim"
            )
            assert hits == retriever.search(
                QUERY, k=20, unit=unit, mode=mode, candidates=20, rerank="token-vectors"
            )
        assert len(hits) == len(first) > 5
        for hit in hits:
            title, (start, stop) = hit.title, hit.span or (0, 0)
            if hit.passage is None:
                assert hit.scores["maxsim"] == 0
                continue
            prefix = f"{title}\n" if start == 0 and title else ""
            (vectors,) = embedder.token_vectors([prefix + hit.text[start:stop]], prompt="document")
            cosines = asked @ codec.decode(codec.encode(vectors)).T
            assert hit.scores["maxsim"] == pytest.approx(
                float(cosines.max(axis=1).mean()), abs=1e-6
            )
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        if mode != "hybrid":
            assert scores == [hit.scores["maxsim"] for hit in hits]
        elif unit == "document":
            before = {hit.id: hit.score for hit in first}
            assert scores == pytest.approx(
                [before[hit.id] + MAXSIM_WEIGHT * hit.scores["maxsim"] for hit in hits]
            )
        else:
            # but for a constant
            logits = {(hit.id, hit.span): np.log(hit.score / (1 - hit.score)) for hit in first[1:]}
            lower = [hit for hit in hits if (hit.id, hit.span) in logits]
            s = [hit.score - PASSAGE_MAXSIM_WEIGHT * hit.scores["maxsim"] for hit in lower]
            wanted = [logits[hit.id, hit.span] / MARGIN for hit in lower]
            assert [x - s[0] for x in s] == pytest.approx([x - wanted[0] for x in wanted], abs=1e-4)


def only_queries(original: Any) -> Any:
    def token_vectors(self: Any, texts: Any, *, prompt: str) -> Any:
        assert prompt == "query", "nothing but the query is encoded"
        return original(self, texts, prompt=prompt)

    return token_vectors


# --- mistakes and damage -------------------------------------------------------------------------


class EmbedderWithoutTokens:
    """A model that makes vectors of documents and none of their tokens."""

    dim, model_name, fingerprint = 16, "plain", "0" * 64
    encode_documents = FakeEmbedder.encode_documents
    encode_queries = FakeEmbedder.encode_queries
    token_vectors = FakeEmbedder.token_vectors


def rerank_by_tokens(root: Path) -> None:
    build_index(make_documents(12), root.with_name("plain"), model=FakeEmbedder())
    with Retriever.load(root.with_name("plain"), model=FakeEmbedder()) as retriever:
        assert retriever.search(QUERY, rerank="maxsim")
        retriever.search(QUERY, rerank="token-vectors")


def put_ready_vectors_beside_tokens(root: Path) -> None:
    rows, keeping = make_documents(12), root.with_name("keeping")
    build_index(rows, keeping, model=FakeEmbedder(), granularity="document", token_vectors="int8")
    one_change.upsert(rows, keeping, vectors=np.eye(12, 16, dtype=np.float32))


@refusals(
    {
        ConfigError: {
            "plain: rerank='token-vectors': this index has no token vectors; build it": (
                rerank_by_tokens
            ),
            "token_vectors='int4': must be one of int8, 1bit": lambda root: build_index(
                make_documents(12), root, model=FakeEmbedder(), token_vectors="int4"
            ),
            "with ready-made vectors: there is no model": lambda root: build_index(
                make_documents(12),
                root,
                vectors=np.eye(12, 16, dtype=np.float32),
                granularity="document",
                token_vectors="int8",
            ),
            r"no token vectors, which .*keeping has": put_ready_vectors_beside_tokens,
            "the model plain makes no token vectors of documents": lambda root: build_index(
                make_documents(12), root, model=EmbedderWithoutTokens(), token_vectors="int8"
            ),
        },
    }
)
def test_what_cannot_be_had_is_refused(tmp_path: Path, refused: Refusal) -> None:
    refused(tmp_path / "ix")
    assert not (tmp_path / "ix").exists()


@pytest.mark.parametrize("granularity", ["document", "both"])
def test_codes_that_are_not_whole_rows_are_found(
    tmp_path: Path, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch, granularity: Any
) -> None:
    root, encode = tmp_path / "ix", TokenCodec.encode
    monkeypatch.setattr(
        TokenCodec, "encode", lambda self, vectors: encode(self, vectors)[:, :7].copy()
    )
    build_index(
        make_documents(12), root, model=embedder, token_vectors="int8", granularity=granularity
    )
    monkeypatch.undo()
    assert any(
        "codes of tokens that are not whole rows" in problem
        for problem in verify_index(root).problems
    )
    with (
        Retriever.load(root, model=embedder) as retriever,
        pytest.raises(IndexFormatError, match="damaged codes"),
    ):
        retriever.search(QUERY, rerank="token-vectors")


def test_a_faiss_file_is_repaired_beside_token_vectors(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    root, rows = tmp_path / "ix", make_documents(30)
    build_index(rows, root, model=embedder, token_vectors="1bit", index="SQ8")
    (damaged,) = root.glob("faiss/passage-*")
    damaged.write_bytes(b"nothing")
    verdict = verify_index(root, repair=True)
    assert verdict.problems and verdict.repaired
    assert_same(stored(root, embedder), expected(rows, embedder, "1bit"))


# --- real models ---------------------------------------------------------------------------------

STORY = "".join(
    f"On day {day} the keeper wound the clock {day % 7} times. The tide came in at {day % 12}"
    " o'clock. "
    for day in range(60)
)


def codes_of(model: Any, text: str, title: str = "") -> Any:
    (encoded,) = model.encode_documents([(title, text)])
    return encoded


@pytest.mark.parametrize("overlap", [0, 16])
def test_our_model_gives_the_tokens_of_its_passages(overlap: int) -> None:
    model = Embedder.load(passage_size=PassageSize(64, overlap, titled=False))
    codec = TokenCodec(model.dim, "int8")
    coding = model.with_token_codec(codec)
    encoded, plain = codes_of(coding, STORY, "The keeper\n"), codes_of(model, STORY, "The keeper\n")
    assert plain.tokens is None
    np.testing.assert_allclose(encoded.passages, plain.passages, atol=1e-6)
    (whole,) = model.token_vectors(["The keeper\n" + STORY], prompt="document")
    wanted = codec.encode(whole)
    assert len(encoded.tokens.ranges) == len(encoded.spans) > 10
    starts = encoded.tokens.ranges[:, 0]
    assert (np.diff(encoded.tokens.ranges.ravel()) >= 0).all() == (overlap == 0)
    assert starts[0] == 0 and encoded.tokens.ranges[-1, 1] == len(whole) == encoded.n_tokens
    assert np.abs(encoded.tokens.codes.astype(int) - wanted).max() <= 1


def test_passages_that_overlap_survive_compaction(tmp_path: Path) -> None:
    model, root = Embedder.load(passage_size=PassageSize(64, 16)), tmp_path / "ix"
    rows = [{"_id": str(i), "text": STORY[i * 100 :]} for i in range(3)]
    build_index(
        rows, root, model=model, token_vectors="1bit", passage_tokens=64, passage_overlap=16
    )
    before, size = stored(root, model), token_rows(root, model)
    one_change.delete(root, ["1"])
    one_change.compact(root)
    after = stored(root, model)
    assert_same(after, {name: before[name] for name in ("0", "2")})
    assert token_rows(root, model) < size * 0.7
    assert problems_of(root) == []


def token_rows(root: Path, model: Any) -> int:
    return sum(len(codes) for passages in stored(root, model).values() for codes in passages)


@pytest.mark.parametrize("late", [False, True])
def test_a_sentence_transformers_model_gives_the_tokens_of_its_passages(
    late: bool, tmp_path: Path
) -> None:
    from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
    from tests.encoder.test_sentence_embedder import SENTENCES, save_bert

    model = SentenceEmbedder.load(save_bert(tmp_path), passage_size=PassageSize(24, 0, late))
    assert model.token_dim == 32
    codec = TokenCodec(model.token_dim, "int8")
    encoded, plain = codes_of(model.with_token_codec(codec), SENTENCES), codes_of(model, SENTENCES)
    np.testing.assert_allclose(encoded.passages, plain.passages, atol=1e-6)
    np.testing.assert_allclose(encoded.vector, plain.vector, atol=1e-6)
    ranges = encoded.tokens.ranges
    assert len(ranges) == len(encoded.spans) > 5
    assert (np.diff(ranges.ravel()) >= 0).all() and ranges[-1, 1] == len(encoded.tokens.codes)
    if not late:
        texts = [SENTENCES[a:b] for a, b in encoded.spans.tolist()]
        for (a, b), vectors in zip(
            ranges.tolist(), model.token_vectors(texts, prompt="document"), strict=True
        ):
            wanted = codec.encode(vectors)
            assert np.abs(encoded.tokens.codes[a:b].astype(int) - wanted).max() <= 1
    rows, root = (
        [{"_id": "story", "text": SENTENCES}, {"_id": "short", "text": "A heron."}],
        tmp_path / "ix",
    )
    build_index(rows, root, model=model, token_vectors="int8")
    one_change.upsert([{"_id": "story", "text": SENTENCES + "The pump stops."}], root, model=model)
    assert problems_of(root) == []
    with Retriever.load(root, model=model) as retriever:
        assert retriever.search("the pump stops", k=3, unit="passage", rerank="token-vectors")
