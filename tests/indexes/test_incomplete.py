"""What was not read is kept in the index, told once, listed, and tried again when that may help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.indexes.changes.sync import plan_sync
from aveyb_retrieval.indexes.store.place import open_directory, read_manifest
from tests import one_change
from tests.documents.scans import (
    NEEDS_TESSERACT,
    Image,
    drawn,
    pretended_tesseract,
    saved,
    scanned_pdf,
)
from tests.indexes.fake import FakeEmbedder
from tests.indexes.files import make_zip

if TYPE_CHECKING:
    from pathlib import Path

SMALL = (1000, 200)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a PDF of a text and a picture, and a picture."""
    folder = tmp_path / "docs"
    folder.mkdir()
    page = drawn("The pull-out test reached 185 kN", size=SMALL)
    (folder / "mixed.pdf").write_bytes(scanned_pdf((None, ["Introduction"]), (page, [])))
    (folder / "fax.png").write_bytes(saved(drawn("The rail is on pontoon nine", size=SMALL), "PNG"))
    (folder / "note.txt").write_text("The rent is due in May.")
    return folder


def texts(root: Path) -> dict[str, str]:
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        return {each.id: " ".join(each.text.split()) for each in retriever.documents()}


def incomplete(root: Path) -> dict[str, str]:
    """What `list --incomplete` prints: reasons by the names of files."""
    result = CliRunner().invoke(main, ["list", str(root), "--incomplete"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines()]
    return {row["file"].rpartition("/")[2]: row["reason"] for row in rows}


def sync(folder: Path, root: Path, **options: Any) -> Any:
    return sync_index(folder, root, model=FakeEmbedder(), **options)


@NEEDS_TESSERACT
def test_what_waits_for_tesseract_is_listed_and_read_once_it_is_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, full = tmp_path / "ix", tmp_path / "none"
    with monkeypatch.context() as without:
        without.setenv("PATH", str(full))
        report = build_index(folder, root, model=FakeEmbedder())
        assert report.rejected == 1 and [each.lost for each in report.notices] == [True]
        assert set(incomplete(root)) == {"mixed.pdf", "fax.png"}
        assert all("OCR needs tesseract" in reason for reason in incomplete(root).values())
        again = sync(folder, root)
        assert (again.version, again.unchanged) == (report.version, 2)
        assert {each.path.rpartition("/")[2] for each in again.known} == {"mixed.pdf", "fax.png"}
        # another change keeps what is known of the others
        (folder / "new.txt").write_text("A new note.")
        assert sync(folder, root).added == 1
        assert set(incomplete(root)) == {"mixed.pdf", "fax.png"}
    plan = plan_sync(folder, root)
    assert (plan.new, plan.changed) == (("fax.png",), ("mixed.pdf",))
    report = sync(folder, root, ocr_seconds=600)
    assert (report.added, report.replaced, report.known) == (1, 1, ())
    read = texts(root)
    assert read["mixed.pdf"] == "Introduction The pull-out test reached 185 kN"
    assert read["fax.png"] == "The rail is on pontoon nine"
    assert incomplete(root) == {} and read_manifest(open_directory(root)).ocr_tries == {}
    assert sync(folder, root).version == report.version


@NEEDS_TESSERACT
def test_pages_without_time_are_read_with_more_of_it_and_not_tried_with_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, calls = tmp_path / "ix", tmp_path / "calls"
    script = f"open({str(calls)!r}, 'a').write('x')\ntime.sleep(3)\nreal()"
    monkeypatch.setenv("PATH", pretended_tesseract(tmp_path / "bin", script))
    build_index(folder, root, model=FakeEmbedder(), ocr_seconds=1)
    assert set(incomplete(root)) == {"mixed.pdf", "fax.png"}
    assert all("took more than 1 s" in reason for reason in incomplete(root).values())
    tried = len(calls.read_text())
    report = sync(folder, root)  # with the seconds of the build
    assert len(calls.read_text()) == tried and len(report.known) == 2
    report = sync(folder, root, ocr_seconds=600)
    assert (report.added, report.replaced) == (1, 1)
    assert incomplete(root) == {} and "185 kN" in texts(root)["mixed.pdf"]
    assert read_manifest(open_directory(root)).reading == {"ocr_seconds": 600}


@NEEDS_TESSERACT
def test_a_picture_without_words_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, root, calls = tmp_path / "docs", tmp_path / "ix", tmp_path / "calls"
    folder.mkdir()
    (folder / "note.txt").write_text("The rent is due in May.")
    (folder / "a.png").write_bytes(saved(Image.effect_noise((500, 300), 60), "PNG"))
    script = f"open({str(calls)!r}, 'a').write('x')\nreal()"
    monkeypatch.setenv("PATH", pretended_tesseract(tmp_path / "bin", script))
    report = build_index(folder, root, model=FakeEmbedder(), ocr_seconds=600)
    assert [each.is_loss for each in report.notices] == [False]
    tried = len(calls.read_text())
    assert tried > 0 and incomplete(root) == {}
    (folder / "more.txt").write_text("Another note.")
    assert sync(folder, root).added == 1
    assert len(calls.read_text()) == tried
    (folder / "a.png").write_bytes(saved(Image.effect_noise((500, 301), 60), "PNG"))
    sync(folder, root)
    assert len(calls.read_text()) > tried


def test_parts_that_are_not_read_are_listed_of_any_kind(tmp_path: Path) -> None:
    folder, root = tmp_path / "docs", tmp_path / "ix"
    folder.mkdir()
    (folder / "b.txt").write_text("The rent is due in May.")
    (folder / "a.zip").write_bytes(make_zip({"n.txt": "words", "plan.dwg": "AC1032"}))
    (folder / "c.pdf").write_bytes(b"damaged")
    report = build_index(folder, root, model=FakeEmbedder())
    reasons = incomplete(root)
    assert set(reasons) == {"a.zip", "c.pdf"}
    assert reasons["a.zip"] == "1 file in it left out: plan.dwg: unknown kind .dwg"
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        found = [each.id for each in retriever.documents({"not_read": {"$exists": True}})]
    assert found == ["a.zip"]
    known = sync(folder, root).known
    assert {each.path.rpartition("/")[2] for each in known} == {"a.zip", "c.pdf"}
    (folder / "a.zip").write_bytes(make_zip({"n.txt": "words"}))
    assert sync(folder, root).version != report.version
    assert set(incomplete(root)) == {"c.pdf"}
    (folder / "c.pdf").unlink()
    sync(folder, root)
    assert incomplete(root) == {}
    (folder / "a.zip").write_bytes(make_zip({"n.txt": "words", "plan.dwg": "AC1032"}))
    one_change.upsert(folder, root, model=FakeEmbedder())
    assert set(incomplete(root)) == {"a.zip"}


@pytest.mark.parametrize(
    ("files", "codes"),
    [
        # of a build, and of a sync that finds the same files
        ({"a.txt": b"words"}, (0, 0)),
        ({"a.txt": b"words", "b.mp3": b"x", "c.txt": b"", ".d": b"x"}, (0, 0)),
        ({"a.txt": b"words", "b.xyz": b"x"}, (1, 0)),
        ({"a.txt": b"words", "b.pdf": b"damaged"}, (1, 0)),
        ({"a.txt": b"words", "b.zip": make_zip({"n.txt": "words", "x.dwg": "x"})}, (1, 0)),
        ({"b.xyz": b"x"}, (2, 2)),
    ],
)
def test_which_run_ends_with_which_exit_code(
    files: dict[str, bytes], codes: tuple[int, int], tmp_path: Path
) -> None:
    folder, root = tmp_path / "docs", tmp_path / "ix"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    for command, code in zip(("build", "sync"), codes, strict=True):
        result = CliRunner().invoke(main, [command, str(folder), "-o", str(root), "--quiet"])
        assert result.exit_code == code, result.output
    if codes == (1, 0):
        arguments = ["sync", str(folder), "-o", str(root), "--quiet", "--fail-on", "any"]
        assert CliRunner().invoke(main, arguments).exit_code == 1


def test_options_of_ocr_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    for options, told in (
        (["--ocr-languages", "deu eng"], "--ocr-languages 'deu eng': write them as Tesseract"),
        (["--ocr-seconds", "0"], "0 is not in the range"),
    ):
        arguments = ["build", str(tmp_path), "-o", str(tmp_path / "ix"), *options]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2 and told in result.output
    result = CliRunner().invoke(main, ["list", str(tmp_path / "ix"), "--incomplete", "--ids"])
    assert result.exit_code == 2 and "--incomplete lists files" in result.output
