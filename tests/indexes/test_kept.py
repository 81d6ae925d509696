"""What people set in an index stays: metadata, whatever becomes of the file, the model or the
place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Index, Retriever, build_index, sync_index
from aveyb_retrieval.documents.records import Edits
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store.manifest import FORMAT_VERSION
from tests import one_change
from tests.contents import problems_of
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = FakeEmbedder()


def fields(root: Path, name: str) -> dict[str, Any]:
    """A metadata field of every document that has it, by id."""
    with Retriever.load(root, model=MODEL) as retriever:
        return {d.id: d.metadata[name] for d in retriever.documents() if name in d.metadata}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "f"
    (folder / "wiki").mkdir(parents=True)
    for name in ("lease.md", "wiki/vpn.md", "wiki/print.md"):
        (folder / name).write_text(f"# {name}\n\nThe text of {name} is here.")
    return folder


@pytest.fixture
def root(folder: Path, tmp_path: Path) -> Path:
    build_index(folder, tmp_path / "ix", model=MODEL)
    one_change.update_metadata(
        tmp_path / "ix", {"dept": "IT"}, ["lease.md", "wiki/vpn.md"], remove=["type"]
    )
    return tmp_path / "ix"


def test_metadata_survive_edits_and_renames_of_files(folder: Path, root: Path) -> None:
    (folder / "lease.md").write_text("# Lease\n\nAnother text.")
    (folder / "wiki" / "vpn.md").rename(folder / "net.md")
    sync_index(folder, root, model=MODEL)
    assert fields(root, "dept") == {"lease.md": "IT", "net.md": "IT"}
    assert fields(root, "type").keys() == {"wiki/print.md"}
    assert fields(root, "path")["net.md"] == "net.md"  # what is read stays what the file says
    one_change.upsert(folder, root, model=MODEL)
    assert fields(root, "dept") == {"lease.md": "IT", "net.md": "IT"}
    assert problems_of(root) == []


def test_metadata_survive_a_build_with_another_model_and_a_copy(
    folder: Path, root: Path, tmp_path: Path
) -> None:
    build_index(None, tmp_path / "again", vectors=root)
    (folder / "lease.md").write_text("# Lease\n\nAnother text.")
    sync_index(folder, tmp_path / "again", model=MODEL)
    other = FakeEmbedder(seed="other")
    build_index(folder, root, model=other, overwrite=True)
    for path, model in ((tmp_path / "again", MODEL), (root, other)):
        with Retriever.load(path, model=model) as retriever:
            assert {d.id for d in retriever.documents({"dept": "IT"})} == {
                "lease.md",
                "wiki/vpn.md",
            }


def test_clear_brings_back_what_was_read(folder: Path, root: Path) -> None:
    one_change.update_metadata(root, {"path": "mine", "n": 1}, ["lease.md"])
    one_change.update_metadata(root, {"n": 2}, ["lease.md"], clear=True)
    assert fields(root, "path")["lease.md"] == "lease.md"
    assert fields(root, "n") == {"lease.md": 2}
    assert "lease.md" in fields(root, "type")
    assert fields(root, "dept") == {"wiki/vpn.md": "IT"}
    with Index.open(root, model=MODEL) as index:
        index.update_metadata({}, where={"dept": "IT"}, clear=True)
    assert fields(root, "dept") == {}


def test_a_document_of_a_program_names_its_own_fields(tmp_path: Path) -> None:
    with Index.open(tmp_path / "ix", create=True, model=MODEL) as index:
        index.upsert([{"_id": "a", "text": "one", "year": 1, "tag": "x"}])
        index.update_metadata({"year": 2, "dept": "IT"}, ["a"], remove=["tag"])
        index.upsert([{"_id": "a", "text": "two"}])
        assert index.get(["a"])[0].metadata == {"year": 2, "dept": "IT"}
        index.upsert([{"_id": "a", "text": "two", "year": 3, "tag": "y"}])
        assert index.get(["a"])[0].metadata == {"year": 3, "dept": "IT", "tag": "y"}
        with index.batch() as batch:
            batch.update_metadata({"n": 1}, ["a"])
            batch.upsert([{"_id": "a", "text": "three"}])
        assert index.get(["a"])[0].metadata == {"dept": "IT", "n": 1}  # the last one named nothing


@pytest.mark.parametrize("goes", [Path.unlink, lambda path: path.write_text("")])
def test_what_goes_with_a_deleted_or_emptied_file_is_told(
    folder: Path, root: Path, goes: Callable[[Path], object]
) -> None:
    goes(folder / "lease.md")
    told = [each for each in sync_index(folder, root, model=MODEL).notices if "dept" in each.reason]
    assert [(n.path, n.left_out) for n in told] == [("lease.md", False)]
    (folder / "lease.md").write_text("# Back")
    sync_index(folder, root, model=MODEL)
    assert fields(root, "dept") == {"wiki/vpn.md": "IT"}
    one_change.delete(root, ["wiki/vpn.md"])


def test_edits_are_read_as_they_were_written() -> None:
    edits = Edits({"a": 1}).changed({"b": None}, ["a"])
    assert edits.merged == {"b": None}
    assert Edits.from_json(str(edits.to_json())) == edits
    assert Edits({"a": 1}).to_json() is None


@pytest.mark.parametrize(
    "damaged", ["{}", "[]", "nothing", '{"read": {}, "fields": {}, "removed": [1]}']
)
def test_edits_that_are_damaged_are_refused(damaged: str) -> None:
    with pytest.raises(ValueError):  # json's, too
        Edits.from_json(damaged)


def test_damaged_edits_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Edits, "to_json", lambda self: "nothing")
    one_change.update_metadata(root, {"a": 1}, ["lease.md"])
    with pytest.raises(
        IndexFormatError, match=r"in the metadata of document 'lease\.md' is damaged"
    ):
        one_change.update_metadata(root, {"a": 1}, ["lease.md"])


def test_an_index_of_another_format_can_be_built_again(folder: Path, root: Path) -> None:
    for manifest in (root / "versions").iterdir():
        manifest.write_text(
            manifest.read_text().replace(f'"format":{FORMAT_VERSION}', '"format":4')
        )
    with pytest.raises(IndexFormatError, match="format 4"):
        one_change.update_metadata(root, {"a": 1}, ["lease.md"])
    assert build_index(folder, root, model=MODEL, overwrite=True).documents == 3
    assert problems_of(root) == []


def test_metadata_that_are_not_what_was_set_are_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Edits, "merged", {"a": 2})
    one_change.update_metadata(root, {"a": 1}, ["lease.md"])
    monkeypatch.undo()
    assert any("'lease.md': its metadata" in problem for problem in problems_of(root))
