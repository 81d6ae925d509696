"""The index on our own encoder: a small random Avey-B model in place of the fake."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.text.passages import DEFAULT_SIZE, PassageSize
from aveyb_retrieval.errors import ConfigError, IndexFormatError, ModelError
from aveyb_retrieval.indexes.changes.verify import verify_index
from aveyb_retrieval.indexes.store.place import describe, read_manifest
from tests import one_change
from tests.encoder.models import save_byte_model

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.model import BuildOptions

LOG = "".join(f"{hour:02}:00 the pump ran at {hour * 7} degrees\n" for hour in range(24))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(
        tmp_path_factory.mktemp("model"), query="query: ", document="text: ", split_size=32
    )


def test_build_search_and_grow_with_our_encoder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"_id": "log", "title": "Pump 7", "text": LOG},
        {"_id": "other", "text": "Something else altogether, in one short line."},
        {"_id": "empty", "text": ""},
    ]
    report = build_index(rows, tmp_path / "ix", model=folder, passage_tokens=100)
    assert report.documents == 3
    with Retriever.load(tmp_path / "ix") as retriever:
        hits = retriever.search("the pump at noon", k=3, rerank="maxsim", context=1)
        assert {hit.id for hit in hits} == {"log", "other", "empty"}
        best = next(hit for hit in hits if hit.id == "log")
        assert best.span is not None
        assert best.passage == LOG[slice(*best.span)]

    grown = {**rows[0], "text": LOG + "24:00 the pump stopped\n"}
    one_change.upsert([grown], tmp_path / "ix")
    build_index([grown, *rows[1:]], tmp_path / "anew", model=folder, passage_tokens=100)
    assert verify_index(tmp_path / "ix").problems == []
    with Retriever.load(tmp_path / "ix") as a, Retriever.load(tmp_path / "anew") as b:
        for one, other in zip(
            a.search("pump", k=3, passages=9), b.search("pump", k=3, passages=9), strict=True
        ):
            assert (one.id, one.span) == (other.id, other.span)
            assert one.score == pytest.approx(other.score, abs=1e-5)


def rows_of(index: Path, document: str) -> list[str]:
    """The passages of a document, best first."""
    with Retriever.load(index) as retriever:
        hits = retriever.search("pump", k=9, passages=99)
    return next([passage.text for passage in hit.passages] for hit in hits if hit.id == document)


def test_passages_are_those_that_were_asked_for_and_later_changes_keep_to_them(
    folder: Path, tmp_path: Path
) -> None:
    rows = [{"_id": "log", "text": LOG}]
    for overlap, lines in ((0, 3), (40, 4)):
        index = tmp_path / f"ix{overlap}"
        build_index(rows, index, model=folder, passage_tokens=90, passage_overlap=overlap)
        one_change.upsert([{"_id": "more", "text": LOG + LOG}], index)
        for document in ("log", "more"):
            found = rows_of(index, document)
            assert max(passage.count("\n") + 1 for passage in found) == lines
            assert all(passage.endswith("degrees") for passage in found)
        assert verify_index(index).problems == []
    default = tmp_path / "default"
    build_index(rows, default, model=folder)
    assert describe(default)["passage_tokens"] == DEFAULT_SIZE.tokens
    with pytest.raises(ConfigError, match="passage_tokens is 3"):
        build_index(rows, tmp_path / "bad", model=folder, passage_tokens=3)
    for wrong in (0.5, "10%"):
        with pytest.raises(
            ConfigError, match=r"passage_overlap is (0\.5|'10%'); it must be a whole number"
        ):
            build_index(rows, tmp_path / "bad", model=folder, passage_overlap=wrong)  # type: ignore[typeddict-item]
    with pytest.raises(ConfigError, match="late=False"):
        build_index(rows, tmp_path / "bad", model=folder, late=False)


def test_a_limit_of_tokens_holds_for_later_changes_too(folder: Path, tmp_path: Path) -> None:
    with Index.open(tmp_path / "ix", create=True, model=folder, max_tokens=100) as index:
        index.search("pump")  # loads the model as a search needs it
        index.upsert([{"_id": "log", "text": LOG}])
    loaded = Embedder.load(folder)
    one_change.upsert([{"_id": "more", "text": LOG}], tmp_path / "ix", model=loaded)
    counts = read_manifest(tmp_path / "ix").counts
    assert (counts.cut_documents, counts.tokens) == (2, 200)
    assert loaded.max_tokens is None


def test_what_is_not_asked_for_is_as_the_model_was_loaded(folder: Path, tmp_path: Path) -> None:
    rows, model = (
        [{"_id": "log", "text": LOG}],
        Embedder.load(folder, passage_size=PassageSize(64, 16, late=True)),
    )
    asked: tuple[BuildOptions, ...] = ({"passage_tokens": 90}, {"passage_overlap": 0})
    for number, (options, made) in enumerate(
        zip(asked, ((90, 16, True), (64, 0, True)), strict=True)
    ):
        build_index(rows, tmp_path / f"ix{number}", model=model, **options)
        encoding = read_manifest(tmp_path / f"ix{number}").encoding
        assert (encoding.passage_tokens, encoding.passage_overlap, encoding.late) == made


def test_a_model_that_cuts_in_its_own_way_does_so_in_later_changes_too(
    folder: Path, tmp_path: Path
) -> None:
    """Its splits are the passages."""
    index, grown = tmp_path / "ix", LOG + "24:00 the pump stopped\n"
    build_index(
        [{"_id": "log", "text": LOG}], index, model=Embedder.load(folder, passage_size=None)
    )
    assert describe(index)["passage_tokens"] is None
    one_change.upsert(
        [{"_id": "log", "text": grown}, {"_id": "new", "text": LOG}], index, model=folder
    )
    before = len("text: ")
    for document, text in (("log", grown), ("new", LOG)):
        with Retriever.load(index, model=folder) as retriever:
            hits = retriever.search("pump", k=9, passages=99)
        spans = sorted(p.span for hit in hits if hit.id == document for p in hit.passages)
        assert spans == [
            (max(start - before, 0), min(start + 32 - before, len(text)))
            for start in range(0, len(text) + before, 32)
        ]
    assert verify_index(index).problems == []


def test_later_changes_repeat_titles_if_the_index_does(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"_id": "log", "title": "Pump 7", "text": LOG},
        {"_id": "other", "title": "Pump 8", "text": LOG[99:]},
    ]
    now = [{**rows[0], "text": LOG + "24:00 the pump stopped\n"}, rows[1], rows[1] | {"_id": "new"}]
    scores = {}
    for titled in (True, False):
        model = Embedder.load(folder, passage_size=PassageSize(24, titled=titled))
        build_index(rows, tmp_path / f"{titled}", model=model)
        assert describe(tmp_path / f"{titled}")["titled"] is titled
        one_change.upsert([now[0], now[2]], tmp_path / f"{titled}", model=folder)
        build_index(now, tmp_path / f"{titled} anew", model=model)
        for path in (tmp_path / f"{titled}", tmp_path / f"{titled} anew"):
            with Retriever.load(path, model=folder) as retriever:
                hits = retriever.search("the pump stopped", k=500, mode="dense", unit="passage")
            scores[path.name] = {(hit.id, hit.span): hit.score for hit in hits}
        assert scores[f"{titled}"] == pytest.approx(scores[f"{titled} anew"], abs=1e-5)
    shared = scores["True"].keys() & scores["False"].keys()
    assert max(abs(scores["True"][key] - scores["False"][key]) for key in shared) > 1e-3


def test_a_model_that_changed_under_the_index_is_noticed(folder: Path, tmp_path: Path) -> None:
    build_index([{"_id": "a", "text": "x"}], tmp_path / "ix", model=folder)
    config = folder / "config.json"
    before = config.read_bytes()
    config.write_bytes(before + b"\n")
    try:
        with (
            Retriever.load(tmp_path / "ix") as retriever,
            pytest.raises(IndexFormatError, match="made by the model"),
        ):
            retriever.search("x")
    finally:
        config.write_bytes(before)


def test_an_own_model_is_found_from_anywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "one"
    place.mkdir()
    shutil.copytree(folder, place / "mine")
    monkeypatch.chdir(place)
    build_index([{"_id": "a", "text": "x"}], "ix", model="mine")
    build_index([{"_id": "a", "text": "x"}], "loaded", model=Embedder.load("mine"))
    sources = {read_manifest(root).encoding.model_source for root in ("ix", "loaded")}
    assert sources == {str(place / "mine")}
    monkeypatch.chdir(tmp_path)
    for root in (place / "ix", tmp_path / "two" / "ix"):
        with Retriever.load(root) as retriever:
            assert retriever.search("x")[0].id == "a"
        with Index.open(root) as index:
            assert index.upsert([{"_id": "a", "text": "x"}]).unchanged == 1
        if place.exists():
            place.rename(tmp_path / "two")  # the model moves with the index
    (tmp_path / "two" / "mine").rename(tmp_path / "elsewhere")
    with Retriever.load(tmp_path / "two" / "ix") as retriever, pytest.raises(ModelError) as raised:
        retriever.search("x")
    assert all(str(tmp_path / name / "mine") in str(raised.value) for name in ("one", "two"))
    with Retriever.load(tmp_path / "two" / "ix", model="elsewhere") as retriever:
        assert retriever.search("x")[0].id == "a"


@pytest.mark.parametrize("precision", ["bfloat16"])
def test_documents_and_queries_of_another_precision(
    folder: Path, tmp_path: Path, precision: str
) -> None:
    rows = [
        {"_id": "log", "text": LOG},
        {"_id": "other", "text": "Something else altogether, in one short line."},
    ]
    build_index(rows, tmp_path / "exact", model=folder)
    build_index(rows, tmp_path / "ix", model=folder, precision=precision)
    with Retriever.load(tmp_path / "exact") as exact:
        expected = {hit.id: hit.score for hit in exact.search("the pump", k=2, mode="dense")}
    for used in ("float32", precision):
        with Retriever.load(tmp_path / "ix", precision=used) as retriever:
            found = {hit.id: hit.score for hit in retriever.search("the pump", k=2, mode="dense")}
        assert found == pytest.approx(expected, abs=0.05)
        assert found != expected, "the vectors are not those of float32"
    with (
        Retriever.load(tmp_path / "ix", precision="int4") as retriever,
        pytest.raises(ConfigError, match="'int4'"),
    ):
        retriever.search("the pump", mode="dense")
