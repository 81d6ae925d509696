"""Damaged and hostile files: always a clear error of ours, found by verify, never a crash, never a wrong answer."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.changes.verify import verify_index
from aveyb_retrieval.indexes.store import manifest as manifest_module
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module", params=["Flat", "HNSW8", "IVF4,Flat"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "ix"
    build_index(make_documents(150), root, model=FakeEmbedder(), index=request.param)
    return root


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "ix")
    return tmp_path / "ix"


def version(root: Path) -> Path:
    name = IndexDirectory(root).current()
    assert name is not None
    return root / name


def files(root: Path) -> list[Path]:
    return [*sorted(p for p in version(root).rglob("*") if p.is_file()), root / "current"]


def use(root: Path) -> None:
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        for mode in ("dense", "lexical", "hybrid"):
            retriever.search("word1 word2 word3", k=20, mode=mode, filter={"year": {"$gte": 2001}}, context=1)


@pytest.mark.parametrize("count", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_one_flipped_byte_anywhere_is_found(index: Path, count: int) -> None:
    rng = random.Random(0)
    for path in files(index):
        data = path.read_bytes()
        places = {0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(count))}
        for place in places:
            flipped = bytearray(data)
            flipped[place] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            if path.name == "current" and bytes(flipped).strip() == data.strip():
                continue  # another white space says the same
            verdict = verify_index(index)
            assert verdict.problems, f"{path.name}, byte {place}"
            with pytest.raises(AveyBError):
                use(index)
        path.write_bytes(data)
    assert verify_index(index).problems == []


def test_flipped_bytes_never_crash_a_reader_of_an_index_too_large_to_hash(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large indexes are not hashed at every opening; what is then read must end in an answer or an error of ours."""
    monkeypatch.setattr(manifest_module, "_QUICK_BYTES", 0)
    rng = random.Random(1)
    errors = 0
    for path in files(index):
        data = path.read_bytes()
        places = [*range(0, min(len(data), 200), 9), *(rng.randrange(len(data)) for _ in range(25))]
        for place in places:
            flipped = bytearray(data)
            flipped[place] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            try:
                use(index)
            except AveyBError:
                errors += 1
        path.write_bytes(data)
    assert errors > 30


def test_truncated_and_missing_files_are_found(index: Path) -> None:
    for path in files(index):
        data = path.read_bytes()
        for size in (0, 1, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:size])
            if path.name == "current" and data[:size].strip() == data.strip():
                continue
            assert verify_index(index).problems if path.name != "current" else True
            with pytest.raises(AveyBError):
                use(index)
        path.unlink()
        with pytest.raises(AveyBError):
            use(index)
        path.write_bytes(data)
    use(index)


@pytest.mark.parametrize("name", ["document.faiss", "passage.faiss"])
def test_repair_rebuilds_faiss_files_from_the_vectors(index: Path, name: str) -> None:
    with Retriever.load(index, model=FakeEmbedder()) as retriever:
        before = retriever.rank(["word1 word2"], k=20, exact=True)
    (version(index) / name).write_bytes(b"nonsense")
    verdict = verify_index(index, repair=True)
    assert verdict.problems
    assert verdict.repaired
    assert verify_index(index).problems == []
    with Retriever.load(index, model=FakeEmbedder()) as retriever:
        assert retriever.rank(["word1 word2"], k=20, exact=True) == before


def test_repair_finds_a_lost_pointer_again_and_leaves_alone_what_has_no_copy(index: Path) -> None:
    (index / "current").write_text("v000099\n")
    assert not verify_index(index).repaired
    assert verify_index(index, repair=True).repaired
    use(index)
    store = version(index) / "store.sqlite"
    data = bytearray(store.read_bytes())
    data[-20] ^= 1
    store.write_bytes(data)
    assert not verify_index(index, repair=True).repaired


def test_repair_does_not_take_a_folder_called_faiss_for_the_damaged_file(tmp_path: Path) -> None:
    root = tmp_path / "wiki.faiss"
    build_index(make_documents(30), root, model=FakeEmbedder())
    store = version(root) / "store.sqlite"
    data = bytearray(store.read_bytes())
    data[-20] ^= 1
    store.write_bytes(data)
    assert not verify_index(root, repair=True).repaired
    assert verify_index(root).problems


def test_repair_goes_on_without_a_damaged_list_of_rejected_lines(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index([*make_documents(30), {"_id": "no text"}], root, model=FakeEmbedder(), on_error="skip")
    (version(root) / "rejected.jsonl").write_bytes(b"nonsense")
    with pytest.raises(AveyBError, match="verify --repair"):
        use(root)
    assert verify_index(root, repair=True).repaired
    assert verify_index(root).problems == []
    use(root)


# --- hostile manifests ------------------------------------------------------------------------------------------------


def rewrite(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and give it a checksum that fits."""
    path = version(root) / "manifest.json"
    body = json.loads(path.read_bytes())
    body.pop("checksum")
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), **body}))


OTHER = {"bytes": 5, "sha256": "0" * 64}
HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "from the future": lambda m: m.update(format=99),
    "of no version": lambda m: m.pop("format"),
    "path leading out": lambda m: m["files"].update({"../../../etc/passwd": OTHER}),
    "absolute path": lambda m: m["files"].update({"/etc/passwd": OTHER}),
    "path inside vectors leading out": lambda m: m["files"].update({"vectors/../../x.safetensors": OTHER}),
    "absurd size": lambda m: m["files"]["store.sqlite"].update(bytes=1 << 62),
    "negative size": lambda m: m["files"]["store.sqlite"].update(bytes=-1),
    "size of text": lambda m: m["files"]["store.sqlite"].update(bytes="5"),
    "no store": lambda m: m["files"].pop("store.sqlite"),
    "files of no kind": lambda m: m.update(files=[]),
    "other granularity": lambda m: m.update(granularity="word"),
    "missing index": lambda m: m["indexes"].pop("document"),
    "absurd dimension": lambda m: m.update(dim=1 << 40),
    "other dimension": lambda m: m.update(dim=17),
    "dimension of text": lambda m: m.update(dim="16"),
    "other count": lambda m: m["indexes"]["document"].update(count=1),
    "more tombstones than vectors": lambda m: m["indexes"]["document"].update(tombstones=1 << 40),
    "settings of text": lambda m: m["indexes"]["document"].update(params={"nprobe": "x"}),
    "unknown field": lambda m: m.update(command="rm -rf"),
    "null": lambda m: m.update(indexes=None),
    "counts of text": lambda m: m.update(counts={"documents": "many"}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_refused(index: Path, what: str) -> None:
    rewrite(index, HOSTILE[what])
    with pytest.raises(IndexFormatError):
        use(index)


def test_a_manifest_that_is_huge_deep_or_no_json_is_refused(index: Path) -> None:
    path = version(index) / "manifest.json"
    for data in (b"", b"[]", b"null", b"{" * 10, b"[" * 200_000, b'{"format": 1}', b"\xff\xfe"):
        path.write_bytes(data)
        with pytest.raises(IndexFormatError):
            use(index)
    with path.open("wb") as handle:
        handle.truncate(65 << 20)
    with pytest.raises(IndexFormatError, match="larger than"):
        use(index)


def test_links_in_place_of_files_are_refused(index: Path, tmp_path: Path) -> None:
    store = version(index) / "store.sqlite"
    store.rename(tmp_path / "elsewhere.sqlite")
    store.symlink_to(tmp_path / "elsewhere.sqlite")
    with pytest.raises(IndexFormatError, match="not a plain file"):
        use(index)


@pytest.mark.parametrize("pointer", ["../../etc", "v1; rm", "/etc/passwd", "", "v000002", "v" + "9" * 100, "\0"])
def test_a_hostile_pointer_is_refused(index: Path, pointer: str) -> None:
    (index / "current").write_text(pointer)
    with pytest.raises(IndexFormatError):
        use(index)


def header(tensors: dict[str, Any]) -> bytes:
    data = json.dumps(tensors).encode()
    return len(data).to_bytes(8, "little") + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (1 << 62).to_bytes(8, "little") + b"{}",
        header({"document": {"dtype": "F32", "shape": [1 << 40, 16], "data_offsets": [0, 1 << 46]}}),
        header({"document": {"dtype": "F32", "shape": [-1, 16], "data_offsets": [0, 64]}}) + bytes(64),
        header({"document": {"dtype": "F64", "shape": [1, 16], "data_offsets": [0, 128]}}) + bytes(128),
        header({"document": {"dtype": "F32", "shape": [1, 16], "data_offsets": [0, 64]}}) + bytes(64),
        header({"document": {"dtype": "F32", "shape": [1, 16], "data_offsets": [64, 0]}}) + bytes(64),
        header({"document": {"dtype": "F32", "shape": [1 << 32, 1 << 32], "data_offsets": [0, 0]}}),
        header({"document": [1, 2, 3]}),
        header({"document": {"dtype": "F32", "shape": "x", "data_offsets": [0, 64]}}),
    ],
)
def test_a_hostile_shard_is_refused(index: Path, data: bytes) -> None:
    (path,) = (version(index) / "vectors").iterdir()
    path.write_bytes(data)
    name = f"vectors/{path.name}"
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(index, lambda m: m["files"].update({name: entry}))
    with pytest.raises(IndexFormatError):
        use(index)


def test_a_shard_of_other_ids_is_noticed(index: Path) -> None:
    from safetensors.numpy import load_file, save

    (path,) = (version(index) / "vectors").iterdir()
    tensors = load_file(path)
    tensors["passage_ids"] = tensors["passage_ids"] + 7
    data = save({k: np.ascontiguousarray(v) for k, v in tensors.items()})
    path.write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(index, lambda m: m["files"].update({f"vectors/{path.name}": entry}))
    assert verify_index(index).problems
    with (
        Retriever.load(index, model=FakeEmbedder()) as retriever,
        pytest.raises(IndexFormatError, match="not among the stored vectors"),
    ):
        retriever.search("word1", exact=True)
