"""`sync_index`: after it an index holds what the folder holds, whatever happened to the files or to
the process.
"""

from __future__ import annotations

import errno
import shutil
import threading
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Index, Retriever, build_index, hits_to_prompt, sync_index
from aveyb_retrieval.documents import folders
from aveyb_retrieval.documents.records import Pages
from aveyb_retrieval.errors import ConfigError, IndexFormatError, IndexLockedError, InputError
from aveyb_retrieval.indexes.changes import ingest, sync
from aveyb_retrieval.indexes.changes.sync import plan_sync, stored_files
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, writer_lock
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.store.tables import Tables
from tests import one_change
from tests.contents import problems_of
from tests.indexes.fake import FakeEmbedder, InterruptedEmbedder
from tests.indexes.files import make_pdf
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("pypdfium2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("apples grow on trees")
    (folder / "b.md").write_text("# Bananas\n\nbananas grow in bunches")
    (folder / "sub" / "c.pdf").write_bytes(
        make_pdf([["cherries are red and sweet in june"], ["dates are brown"]], title="Fruit")
    )
    (folder / "sound.mp3").write_bytes(b"x")
    return folder


def contents(root: Path) -> dict[str, tuple[str, str, str]]:
    """Title, text and path of every document, by its id."""
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        return {d.id: (d.title, d.text, d.metadata["path"]) for d in retriever.documents()}


def assert_like_a_new_build(root: Path, folder: Path, tmp_path: Path) -> None:
    """The index finds what one finds that is built of the folder as it is now."""
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    build_index(folder, tmp_path / "new", model=FakeEmbedder())
    assert contents(root) == contents(tmp_path / "new")
    answers = []
    for path in (root, tmp_path / "new"):
        with Retriever.load(path, model=FakeEmbedder(), verify=True) as retriever:
            hits = retriever.search("dates cherries grow", k=10, mode="dense")
            answers.append({(hit.id, hit.page, hit.passage): hit.score for hit in hits})
    assert answers[0] == pytest.approx(answers[1], abs=1e-5)
    assert problems_of(root) == []


def test_new_changed_renamed_and_deleted_files(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    first = sync_index(folder, root, model=FakeEmbedder())
    assert (first.added, first.documents, len(first.notices)) == (3, 3, 1)
    assert first.notices[0].reason == "unknown kind .mp3"
    same = sync_index(folder, root, model=FakeEmbedder())
    assert (same.version, same.unchanged, same.added) == ("v000001", 3, 0)

    (folder / "a.txt").write_text("apples grow on old trees")
    (folder / "b.md").unlink()
    (folder / "sub" / "c.pdf").rename(folder / "d.pdf")
    (folder / "new.txt").write_text("elderberries")
    plan = plan_sync(folder, root)
    assert (plan.new, plan.changed, plan.deleted) == (("new.txt",), ("a.txt",), ("b.md",))
    assert plan.renamed == (("sub/c.pdf", "d.pdf"),)
    embedder = FakeEmbedder()
    done = sync_index(folder, root, model=embedder)
    assert (done.added, done.replaced, done.renamed, done.deleted, done.unchanged) == (
        1,
        1,
        1,
        1,
        0,
    )
    assert embedder.encoded_words < 12  # the renamed file was not encoded again
    assert_like_a_new_build(root, folder, tmp_path)
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        hit = retriever.search("dates", k=1, mode="lexical")[0]
        assert (hit.id, hit.page, hit.page_label, hit.metadata["path"]) == (
            "d.pdf",
            2,
            "2",
            "d.pdf",
        )
        assert "(d.pdf, page 2, characters " in hits_to_prompt([hit])


def test_a_hit_says_the_page_of_its_best_sentence_and_the_pages_of_its_passage(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    lines = [
        ["the manual begins here"],
        ["pumps are red and"],
        ["valves are closed first."],
        ["the end"],
    ]
    (folder / "m.pdf").write_bytes(make_pdf(lines, labels="/Nums [0 << /S /r >>]"))
    build_index(folder, tmp_path / "ix", model=FakeEmbedder(split_size=100))
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder(split_size=100)) as retriever:
        for query, page, label in (
            ("closed valves", 3, "iii"),
            ("which manual", 1, "i"),
            ("nothing of it", 1, "i"),
        ):
            for unit in ("document", "passage"):
                hit = retriever.search(query, k=1, unit=unit)[0]
                assert (hit.page, hit.page_label, hit.page_unit, hit.pages) == (
                    page,
                    label,
                    "page",
                    (1, 4),
                ), query
                assert (hit.passages[0].page, hit.passages[0].pages, hit.place) == (
                    page,
                    (1, 4),
                    f"page {label}",
                )
        assert "(m.pdf, page iii, characters " in hits_to_prompt(
            retriever.search("closed valves", k=1)
        )
        by_vector = retriever.search("closed valves", k=1, mode="dense")[0]
        assert (by_vector.page, by_vector.to_dict()["pages"]) == (3, (1, 4))


def test_a_file_that_cannot_be_read_stops_or_is_left_out(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    sync_index(folder, root, model=FakeEmbedder())
    (folder / "sub" / "c.pdf").write_bytes(b"damaged")
    (folder / "a.txt").unlink()
    with pytest.raises(InputError, match=r"c\.pdf: not a PDF file.*such files"):
        sync_index(folder, root, model=FakeEmbedder(), on_error="stop")
    assert len(contents(root)) == 3  # nothing has changed
    done = sync_index(folder, root, model=FakeEmbedder())
    # an old text is not kept as if it were today's
    assert (done.deleted, done.rejected, done.unchanged) == (2, 1, 1)
    assert contents(root).keys() == {"b.md"}


@pytest.mark.parametrize("count", [0, 1])
def test_a_folder_whose_disk_fails_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    read = sync.read_files

    def fails(*given: Any) -> Any:
        yield from islice(read(*given), count)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sync, "read_files", fails)
    build_index([{"_id": "x", "text": "y"}], tmp_path / "ix", model=FakeEmbedder())
    with pytest.raises(InputError, match=r"docs: cannot be read .Input/output error"):
        sync_index(folder, tmp_path / "ix", model=FakeEmbedder())


def test_other_documents_stay_and_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index([{"_id": "own", "text": "words"}], root, model=FakeEmbedder())
    assert sync_index(folder, root, model=FakeEmbedder()).added == 3
    (folder / "a.txt").unlink()
    assert sync_index(folder, root, model=FakeEmbedder()).documents == 3
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.txt").write_text("something else")
    with pytest.raises(ConfigError, match="has none of them"):
        sync_index(other, root, model=FakeEmbedder())
    (other / "x.txt").unlink()
    with pytest.raises(InputError, match="holds no file that is read"):
        sync_index(other, root, model=FakeEmbedder())
    folder.rename(tmp_path / "moved")
    assert sync_index(tmp_path / "moved", root, model=FakeEmbedder()).unchanged == 2
    (tmp_path / "moved" / "own").with_suffix(".txt").write_text("t")
    assert sync_index(tmp_path / "moved", root, model=FakeEmbedder()).added == 1


def test_a_sync_that_was_killed_continues_with_the_folder_as_it_is_then(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ix"
    for number in range(20):
        (folder / f"{number:02}.txt").write_text(f"text number {number}")
    sync_index(folder, root, model=FakeEmbedder())
    for number in range(20):
        (folder / f"{number:02}.txt").write_text(f"other text {number}")
    (folder / "b.md").rename(folder / "renamed.md")
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 3)
    with pytest.raises(KeyboardInterrupt):
        sync_index(folder, root, model=InterruptedEmbedder(after=13))
    assert "text number 3" in {text for _, text, _ in contents(root).values()}
    (folder / "00.txt").write_text("changed once more")
    (folder / "01.txt").unlink()
    done = sync_index(folder, root, model=FakeEmbedder())
    assert done.resumed
    assert (done.added, done.replaced, done.renamed, done.deleted, done.unchanged) == (
        0,
        19,
        1,
        1,
        2,
    )
    assert_like_a_new_build(root, folder, tmp_path)


def test_shards_carry_hashes_and_pages(folder: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        build_index(
            folder, tmp_path / "shards" / str(number), share=(number, 2), model=FakeEmbedder()
        )
    build_index(None, tmp_path / "ix", vectors=tmp_path / "shards")
    assert_like_a_new_build(tmp_path / "ix", folder, tmp_path)
    build_index(None, tmp_path / "again", vectors=tmp_path / "ix")
    assert_like_a_new_build(tmp_path / "again", folder, tmp_path)
    with Retriever.load(tmp_path / "again", model=FakeEmbedder()) as retriever:
        assert retriever.search("dates brown", k=1)[0].page == 2
    (folder / "a.txt").write_text("apples grow on trees in autumn")
    done = sync_index(folder, tmp_path / "again", model=FakeEmbedder())
    assert (done.added, done.replaced, done.unchanged) == (0, 1, 2)
    assert_like_a_new_build(tmp_path / "again", folder, tmp_path)


@pytest.mark.parametrize(
    "pages", ['{"starts": [5], "labels": []}', "nothing", "5", '{"starts": [0]}']
)
def test_damaged_pages_are_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: str
) -> None:
    monkeypatch.setattr(Pages, "to_json", lambda self: pages)
    build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        assert len(retriever.get(["a.txt", "b.md"])) == 2
        with pytest.raises(
            IndexFormatError, match=r"the pages of document 'sub/c\.pdf' are damaged"
        ):
            retriever.get(["sub/c.pdf"])
    assert any("'sub/c.pdf' are damaged" in problem for problem in problems_of(tmp_path / "ix"))


def test_pages_outside_their_text_are_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pages, "to_json", lambda self: '{"starts": [0, 9999], "labels": []}')
    build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    (problem,) = problems_of(tmp_path / "ix")
    assert "'sub/c.pdf': a page begins behind the end of its text" in problem


def test_a_folder_is_watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are acted on once they have stopped."""
    acted: list[set[str]] = []
    steps = iter(
        [
            lambda: None,
            lambda: (folder / "n.txt").write_text("one"),
            lambda: (folder / "n.txt").write_text("one and two"),
            lambda: None,
            lambda: (folder / "a.txt").unlink(),
            lambda: None,
        ]
    )

    def sleep(seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(sync.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        sync.watch_folder(
            folder, 1.0, lambda: acted.append({f.id for f in folders.list_folder(folder)[0]})
        )
    assert acted == [
        {"a.txt", "b.md", "sub/c.pdf"},
        {"a.txt", "b.md", "sub/c.pdf", "n.txt"},
        {"b.md", "sub/c.pdf", "n.txt"},
    ]


def test_links_are_followed_again(folder: Path, tmp_path: Path) -> None:
    root, outside = tmp_path / "ix", tmp_path / "elsewhere.txt"
    outside.write_text("a text that is elsewhere")
    (folder / "link.txt").symlink_to(outside)
    assert sync_index(folder, root, model=FakeEmbedder(), follow_links=True).added == 4
    same = sync_index(folder, root, model=FakeEmbedder(), follow_links=True)
    assert (same.added, same.replaced, same.unchanged) == (0, 0, 4)
    outside.write_text("another text that is elsewhere")
    assert plan_sync(folder, root, follow_links=True).changed == ("link.txt",)


def test_a_sync_that_was_killed_and_is_not_needed_any_more_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ix"
    before = {number: f"text number {number}" for number in range(20)}
    for number, text in before.items():
        (folder / f"{number:02}.txt").write_text(text)
    sync_index(folder, root, model=FakeEmbedder())
    for number in before:
        (folder / f"{number:02}.txt").write_text(f"other text {number}")
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 3)
    with pytest.raises(KeyboardInterrupt):
        sync_index(folder, root, model=InterruptedEmbedder(after=13))
    assert IndexDirectory(root).journal.exists()
    for number, text in before.items():
        (folder / f"{number:02}.txt").write_text(text)
    assert sync_index(folder, root, model=FakeEmbedder()).unchanged == 23
    assert not IndexDirectory(root).journal.exists()
    one_change.delete(root, ["a.txt"])  # another change is not held up
    assert problems_of(root) == []


@pytest.fixture(scope="module")
def with_a_document_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with one file, and an index in which a document of this file's id came otherwise."""
    folder = tmp_path_factory.mktemp("hand")
    (folder / "hand.txt").write_text("read from a file")
    root = tmp_path_factory.mktemp("index") / "ix"
    build_index([{"_id": "hand.txt", "text": "written by hand"}], root, model=FakeEmbedder())
    return folder, root


@refusals(
    {
        InputError: {
            r"hand\.txt.* was not read from a file": lambda call, folder, root: call(folder, root),
        },
        ConfigError: {
            "no index here to sync a part of": lambda call, folder, root: call(
                folder, root.parent / "none", only=["sub"]
            ),
            "type list; give the path of one folder": lambda call, folder, root: call(
                [folder], root
            ),
        },
    }
)
@pytest.mark.parametrize("call", [plan_sync, sync_index])
def test_a_plan_stops_where_the_sync_would(
    with_a_document_of_its_own: tuple[Path, Path], call: Callable[..., object], refused: Refusal
) -> None:
    refused(call, *with_a_document_of_its_own)


def test_a_part_is_no_folder_of_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ix"
    build_index(folder, root, model=FakeEmbedder())
    with pytest.raises(ConfigError, match=r"--only sub/"):
        sync_index(folder / "sub", root, model=FakeEmbedder())
    (folder / "a.txt").unlink()
    (folder / "sub" / "new.txt").write_text("figs")
    monkeypatch.chdir(folder / "sub")
    # the folder with the part, or the part itself
    for place, parts in (("..", ["sub/"]), (".", ["sub"])):
        assert plan_sync(place, root, only=parts).new == ("sub/new.txt",)
    done = sync_index("..", root, model=FakeEmbedder(), only=["./sub/"])
    assert (done.added, done.unchanged, done.deleted) == (1, 1, 0)
    assert contents(root).keys() == {"a.txt", "b.md", "sub/c.pdf", "sub/new.txt"}
    shutil.rmtree(folder / "sub")
    monkeypatch.chdir(folder)
    assert sync_index(".", root, model=FakeEmbedder(), only=["sub"]).deleted == 2
    for part in ("nowhere", "../elsewhere", ".", str(tmp_path)):
        with pytest.raises(ConfigError, match="--only"):
            sync_index(".", root, model=FakeEmbedder(), only=[part])
    assert sync_index(".", root, model=FakeEmbedder()).deleted == 1


def test_another_folder_is_refused_unless_it_stands_in_the_place_of_the_first(
    folder: Path, tmp_path: Path
) -> None:
    root, copy = tmp_path / "ix", tmp_path / "copy"
    build_index(folder, root, model=FakeEmbedder())
    shutil.copytree(folder, copy)
    (copy / "b.md").unlink()
    with pytest.raises(ConfigError, match=r"another folder.*--moved"):
        sync_index(copy, root, model=FakeEmbedder())
    assert sync_index(copy, root, model=FakeEmbedder(), moved=True).deleted == 1
    with pytest.raises(ConfigError, match="--moved"):
        sync_index(folder, root, model=FakeEmbedder())


@pytest.mark.parametrize("moved", [False, True])
def test_a_moved_folder_is_recorded_where_no_file_changed(
    folder: Path, tmp_path: Path, moved: bool
) -> None:
    root, there = tmp_path / "ix", tmp_path / "there"
    sync_index(folder, root, model=FakeEmbedder())
    folder.rename(there)
    assert sync_index(there, root, model=FakeEmbedder(), moved=moved).unchanged == 3
    version = sync_index(there, root, model=FakeEmbedder()).version
    files = stored_files(Tables.open(root, read_manifest(root)))
    assert {file.folder for file in files.values()} == {str(there)}
    # there is nothing to record again
    assert sync_index(there, root, model=FakeEmbedder()).version == version
    with pytest.raises(
        ConfigError, match=r"is a part of it; sync the whole folder, or name the part"
    ):
        sync_index(there / "sub", root, model=FakeEmbedder())
    folder.mkdir()
    (folder / "a.txt").write_text("of another one")
    assert sync_index(there, root, model=FakeEmbedder()).unchanged == 3


def test_a_sync_reads_the_folder_as_the_build_did(tmp_path: Path) -> None:
    folder, root, linked = tmp_path / "docs", tmp_path / "ix", tmp_path / "linked.txt"
    for team in ("hr", "it"):
        (folder / team).mkdir(parents=True)
        (folder / team / "a.txt").write_text(f"pay of {team}")
    linked.write_text("linked")
    (folder / "it" / "b.txt").symlink_to(linked)
    build_index(folder, root, model=FakeEmbedder(), path_fields="{team}/*", follow_links=True)
    assert sync_index(folder, root, model=FakeEmbedder()).unchanged == 3
    one_change.delete(root, ["hr/a.txt"])
    assert plan_sync(folder, root).new == ("hr/a.txt",)
    assert sync_index(folder, root, model=FakeEmbedder(), path_fields=None).added == 1
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        assert dict(retriever.values("team")) == {"hr": 1, "it": 2}
        assert retriever.count({"team": {"$nin": ["hr"]}}) == 2
    assert sync_index(folder, root, model=FakeEmbedder(), path_fields="{group}/*").replaced == 3
    assert sync_index(folder, root, model=FakeEmbedder()).unchanged == 3
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        assert dict(retriever.values("group")) == {"hr": 1, "it": 2}


@pytest.mark.parametrize("patterns", [[], [""], [" "]])
def test_an_empty_list_clears_the_patterns_of_the_build(
    folder: Path, tmp_path: Path, patterns: list[str]
) -> None:
    root = tmp_path / "ix"
    build_index(folder, root, model=FakeEmbedder(), exclude=["sub/", "later/"])
    assert plan_sync(folder, root).new == ()
    assert len(plan_sync(folder, root, exclude=patterns).new) == 1
    assert sync_index(folder, root, model=FakeEmbedder(), exclude=patterns).added == 1
    (folder / "later").mkdir()
    (folder / "later" / "e.txt").write_text("later")
    assert sync_index(folder, root, model=FakeEmbedder()).added == 1


def test_an_option_is_kept_where_it_changes_no_file_today(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    first = build_index(folder, root, model=FakeEmbedder())
    kept = sync_index(folder, root, model=FakeEmbedder(), exclude=["later/"])
    assert (kept.unchanged, kept.version) == (first.documents, "v000002")
    assert sync_index(folder, root, model=FakeEmbedder(), exclude=["later/"]).version == "v000002"
    (folder / "later").mkdir()
    (folder / "later" / "e.txt").write_text("later")
    assert sync_index(folder, root, model=FakeEmbedder()).version == "v000002"
    assert sync_index(folder, root, model=FakeEmbedder(), exclude=[]).added == 1


def test_a_default_that_is_given_counts(tmp_path: Path) -> None:
    folder, root, linked = tmp_path / "docs", tmp_path / "ix", tmp_path / "linked.txt"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    linked.write_text("linked")
    (folder / "b.txt").symlink_to(linked)
    options = {"follow_links": True, "ocr_seconds": 7, "file_seconds": 8, "max_line": 9_000}
    build_index(folder, root, model=FakeEmbedder(), **options)  # type: ignore[arg-type]
    assert read_manifest(root).reading == options
    assert sync_index(folder, root, model=FakeEmbedder(), follow_links=False).deleted == 1
    sync_index(folder, root, model=FakeEmbedder(), ocr_seconds=60, file_seconds=120)
    assert read_manifest(root).reading == {"max_line": 9_000}
    sync_index(folder, root, model=FakeEmbedder(), max_line=64 << 20)
    assert read_manifest(root).reading == {}


@pytest.fixture
def sixty_without_five(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of 60 files, and an index of it; the first five files were deleted since."""
    folder, root = tmp_path / "docs", tmp_path / "ix"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02}.txt").write_text(f"text {number}")
    build_index(folder, root, model=FakeEmbedder())
    for number in range(5):
        (folder / f"{number:02}.txt").unlink()
    return folder, root


def test_many_deletions_are_asked_about(sixty_without_five: tuple[Path, Path]) -> None:
    folder, root = sixty_without_five
    assert sync_index(folder, root, model=FakeEmbedder()).deleted == 5
    for number in range(5, 10):
        (folder / f"{number:02}.txt").unlink()
    for number in range(10, 12):
        (folder / f"{number:02}.txt").write_bytes(b"\xff\x00\xff")
    assert len(plan_sync(folder, root).deleted) == 7
    with pytest.raises(ConfigError, match=r"7 of 55 documents.*--allow-delete 7"):
        sync_index(folder, root, model=FakeEmbedder())
    assert len(contents(root)) == 55
    assert sync_index(folder, root, model=FakeEmbedder(), allow_delete=7).deleted == 7


def test_what_was_deleted_before_a_kill_counts_among_many_deletions(
    sixty_without_five: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, root = sixty_without_five
    for number in range(10, 30):
        (folder / f"{number:02}.txt").write_text(f"other text {number}")
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 3)
    with pytest.raises(KeyboardInterrupt):
        sync_index(folder, root, model=InterruptedEmbedder(after=13))
    for number in range(28, 30):
        (folder / f"{number:02}.txt").write_bytes(b"\xff\x00\xff")
    with pytest.raises(ConfigError, match=r"7 of 60 documents.*--allow-delete 7"):
        sync_index(folder, root, model=FakeEmbedder())
    assert len(contents(root)) == 60
    assert sync_index(folder, root, model=FakeEmbedder(), allow_delete=7).deleted == 7
    assert_like_a_new_build(root, folder, tmp_path)


def test_what_is_left_out_is_told_once_and_makes_one_version(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    (folder / "broken.pdf").write_bytes(b"damaged")
    (folder / "notes.xyz").write_text("of no kind")
    first = build_index(folder, root, model=FakeEmbedder())
    assert (first.rejected, first.documents) == (1, 3)
    again = sync_index(folder, root, model=FakeEmbedder())
    assert (again.version, again.rejected, again.unchanged) == (first.version, 0, 3)
    assert {notice.path.rpartition("/")[2] for notice in again.known} == {"broken.pdf", "notes.xyz"}
    assert [notice.reason for notice in again.notices] == ["unknown kind .mp3"]
    assert plan_sync(folder, root).counts()["added"] == 0  # it counts as the sync does
    (folder / "empty.txt").write_text("")
    (folder / "worse.pdf").write_bytes(b"damaged")
    told = sync_index(folder, root, model=FakeEmbedder())
    assert (told.version, told.rejected, len(told.known), told.unchanged) == ("v000002", 1, 2, 3)
    assert sync_index(folder, root, model=FakeEmbedder()).version == "v000002"
    with pytest.raises(InputError, match="not a PDF file"):
        sync_index(folder, root, model=FakeEmbedder(), on_error="stop")
    (folder / "broken.pdf").write_bytes(make_pdf([["it can be read now"]]))
    assert sync_index(folder, root, model=FakeEmbedder()).added == 1


def test_of_copies_each_keeps_its_name(tmp_path: Path) -> None:
    folder, root = tmp_path / "docs", tmp_path / "ix"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text("the same in all")
    build_index(folder, root, model=FakeEmbedder())
    (folder / "new").mkdir()
    for name in "cba":
        (folder / f"{name}.txt").rename(folder / "new" / f"{name}.txt")
    assert sorted(plan_sync(folder, root).renamed) == [
        (f"{name}.txt", f"new/{name}.txt") for name in "abc"
    ]


def test_a_watch_waits_for_another_writer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acted, told = (
        iter([IndexLockedError("held"), IndexLockedError("held"), None, KeyboardInterrupt()]),
        [],
    )

    def act() -> None:
        if (error := next(acted)) is not None:
            raise error
        (folder / "n.txt").write_text("one")

    monkeypatch.setattr(sync.time, "sleep", lambda seconds: None)
    with pytest.raises(KeyboardInterrupt):
        sync.watch_folder(folder, 1.0, act, report=told.append)
    assert told == ["held; waiting for it"]


def test_a_writer_waits_for_another_one(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(folder, root, model=FakeEmbedder())
    with (
        writer_lock(IndexDirectory(root).lock),
        pytest.raises(IndexLockedError, match=r"still after 0\.1 seconds"),
    ):
        one_change.delete(root, ["a.txt"], wait=0.1)
    held = ExitStack()
    held.enter_context(writer_lock(IndexDirectory(root).lock))
    threading.Timer(0.2, held.close).start()
    with Index.open(root, model=FakeEmbedder(), wait=30) as index:
        assert index.delete(["a.txt"]).deleted == 1


@pytest.mark.parametrize("wait", [-1, "long", float("nan"), True])
def test_a_wait_that_is_no_time_is_refused(
    with_a_document_of_its_own: tuple[Path, Path], wait: Any
) -> None:
    with pytest.raises(ConfigError, match="wait"):
        one_change.delete(with_a_document_of_its_own[1], ["hand.txt"], wait=wait)
