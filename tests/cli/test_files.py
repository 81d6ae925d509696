"""`aveyb-index` on folders and files: what was left out, sync, counts, types of columns,
interruptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from aveyb_retrieval.cli.index import main
from aveyb_retrieval.indexes.store.place import read_manifest
from tests.indexes.fake import FakeEmbedder, load_instead

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with the fake model in place of the embedded one."""
    load_instead(monkeypatch, lambda *_, **__: FakeEmbedder())

    def invoke(*arguments: object) -> Result:
        typed = [str(a) for a in arguments]
        return CliRunner().invoke(main, typed, prog_name="aveyb-index", catch_exceptions=False)

    return invoke


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text("apples grow on trees")
    (folder / "b.md").write_text("---\ntitle: Fruit\n---\n# Bananas\n\nbananas grow in bunches")
    for name in ("one.xyz", "two.xyz", "three.csv", ".hidden"):
        (folder / name).write_text("x")
    return folder


def test_what_a_folder_holds_and_is_not_read_is_summed_up_or_named(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    built = run("build", folder, "-o", tmp_path / "ix", "--quiet")
    assert built.exit_code == 1, built.output  # done, and something was left out
    assert "3 added; 3 documents" in built.output
    assert "not read: 3 files or folders: 2 unknown kind .xyz; 1 hidden (--verbose" in built.stderr
    assert "one.xyz" not in built.output
    named = run("build", folder, "-o", tmp_path / "ix", "--quiet", "--overwrite", "--verbose")
    assert f"{folder / 'one.xyz'}: unknown kind .xyz" in named.stderr
    (folder / "old.doc").write_bytes(b"\xd0\xcf")
    assert (
        "unknown kind .doc, save it as .docx"
        in run("build", folder, "-o", tmp_path / "old", "--quiet").stderr
    )
    (folder / "c.txt").write_bytes(b"caf\xe9")
    broken = run("build", folder, "-o", tmp_path / "new", "--quiet", "--on-error", "stop")
    assert broken.exit_code == 2
    assert broken.stderr.startswith(
        f"aveyb-index build: {folder / 'c.txt'}: invalid UTF-8 at byte 3 (0xe9)"
    )
    assert not (tmp_path / "new").exists()
    skipped = run("build", folder, "-o", tmp_path / "new", "--quiet")
    assert skipped.exit_code == 1
    assert "left out: 1 line or file, listed with reasons in" in skipped.stderr
    assert f"\n  {folder / 'c.txt'}: invalid UTF-8 at byte 3" in skipped.stderr
    third = run("build", folder, "-o", tmp_path / "third", "--quiet", "--encoding", "latin-1")
    assert "left out" not in third.stderr
    assert (
        "nosuch" in run("build", folder, "-o", tmp_path / "fourth", "--encoding", "nosuch").stderr
    )


def test_what_was_left_out_decides_the_exit_code(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "sound.mp3", ".hidden"):
        (folder / name).write_text("apples")
    # a sound has no words to find
    assert run("build", folder, "-o", tmp_path / "ix", "--quiet").exit_code == 0
    (folder / "c.xyz").write_text("pears")
    assert run("sync", folder, "-o", tmp_path / "ix", "--quiet").exit_code == 1
    (folder / "c.xyz").unlink()
    (folder / "b.txt").write_bytes(b"\xff\xfe\x00")
    assert run("sync", folder, "-o", tmp_path / "ix", "--quiet").exit_code == 1
    lines = tmp_path / "c.jsonl"
    lines.write_text('{"text": "a"}\nnothing\n')
    # a single file stops
    assert run("build", lines, "-o", tmp_path / "lines", "--quiet").exit_code == 2
    assert (
        run("build", lines, "-o", tmp_path / "lines", "--quiet", "--on-error", "skip").exit_code
        == 1
    )


def test_progress_in_a_log_is_a_line_now_and_then(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "encoding:" not in run("build", folder, "-o", tmp_path / "ix").stderr
    monkeypatch.setattr("aveyb_retrieval.cli.common.LINE_SECONDS", 0.0)
    assert "\nencoding: 3 of 3, " in run("build", folder, "-o", tmp_path / "two").stderr


def test_sync_and_its_dry_run(run: Run, folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    assert (
        run("sync", folder, "-o", root, "--dry-run").output
        == "3 added (a dry run: nothing was changed)\n"
    )
    assert not root.exists()
    assert "3 added; 3 documents" in run("sync", folder, "-o", root, "--quiet").output
    (folder / "a.txt").unlink()
    (folder / "b.md").rename(folder / "c.md")
    dry = run("sync", folder, "-o", root, "--dry-run", "--verbose").output
    assert "1 renamed, 1 deleted, 1 unchanged" in dry
    assert "renamed: b.md -> c.md" in dry
    assert "deleted: a.txt" in dry
    assert (
        "1 renamed, 1 deleted, 1 unchanged; 2 documents,"
        in run("sync", folder, "-o", root, "--quiet").output
    )
    assert "2 unchanged; 2 documents," in run("sync", folder, "-o", root, "--quiet").output
    assert run("sync", tmp_path / "nowhere", "-o", root).exit_code == 2


def test_a_sync_reads_a_folder_as_before_unless_it_says_otherwise(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "ix"
    (folder / "a.txt").rename(tmp_path / "a.txt")
    (folder / "a.txt").symlink_to(tmp_path / "a.txt")
    (folder / "old.md").write_text("apples fell")
    options = ("--exclude", "old.md", "--exclude", "*.csv", "--follow-links", "--ocr-seconds", "9")
    run("build", folder, "-o", root, "--quiet", *options)
    for arguments, said in (
        ((), "2 unchanged"),
        (("--no-follow-links",), "1 deleted, 1 unchanged"),
        ((), "1 unchanged"),
        (("--exclude", ""), "2 added, 1 unchanged"),
        ((), "3 unchanged"),
        (("--ocr-seconds", "60"), "3 unchanged"),
    ):
        dry = run("sync", folder, "-o", root, "--dry-run", *arguments).output
        assert dry.startswith(said), (arguments, dry)
        assert f": {said}; " in run("sync", folder, "-o", root, "--quiet", *arguments).output
    assert read_manifest(root).reading == {}


def test_a_sync_forgets_how_a_folder_was_read_where_it_is_told_to(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "ix"
    kept = {"--encoding": "latin-1", "--path-fields": "{file}", "--ocr-languages": "eng"}
    run("build", folder, "-o", root, "--quiet", *(word for pair in kept.items() for word in pair))
    assert read_manifest(root).reading == {
        "encoding": "latin-1",
        "path_fields": "{file}",
        "ocr_languages": "eng",
    }
    for option in kept:
        done = run("sync", folder, "-o", root, "--quiet", option, "")
        assert done.exit_code == 0, done.output
    assert read_manifest(root).reading == {}


def test_counts_types_and_filters_that_find_nothing(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "c.csv"
    table.write_text("_id,text,year,code\na,apples,2016,1\nb,bananas,2020,2\n")
    root = tmp_path / "ix"
    assert run("build", table, "-o", root, "--quiet", "--types", "code=string").exit_code == 0
    assert (
        run(
            "search", root, "apples", "--filter", '{"year": {"$gte": 2020}}', "--json"
        ).output.count('"id"')
        == 1
    )
    assert (
        run("search", root, "apples", "--filter", '{"code": "1"}', "--json").output.count('"id"')
        == 1
    )
    table.write_text("_id,text,year,code\na,apples,2016,1\nb,berries,2020,2\nc,cherries,2021,3\n")
    changed = run("upsert", root, table, "--quiet", "--types", "code=string")
    assert "1 added, 1 replaced, 1 unchanged; 3 documents" in changed.output
    assert "1 deleted; 2 documents" in run("delete", root, "c").output
    for where, words in (
        (
            '{"yeer": 1}',
            "none has the field 'yeer'; did you mean 'year'? The fields are 'code', 'year'",
        ),
        (
            '{"$or": [{"code": {"$gt": 1}}]}',
            "the field 'code' holds texts, and the condition has the number 1",
        ),
        ('{"year": {"$in": ["2016"]}}', "the field 'year' holds numbers"),
        (
            '{"year": {"$regex": "^20"}}',
            "the field 'year' holds numbers, and the condition has the text '^20'",
        ),
    ):
        caplog.clear()
        assert run("search", root, "apples", "--filter", where).stderr.endswith("nothing found\n")
        assert words in caplog.text
    caplog.clear()
    run("delete", root, "--filter", '{"yeer": 1}')
    assert "none has the field 'yeer'" in caplog.text
    caplog.clear()
    run("search", root, "apples", "--filter", '{"year": 1999}')
    assert caplog.text == ""
    assert run("build", table, "-o", tmp_path / "n", "--types", "year").exit_code == 2


def test_an_interrupted_change_says_how_it_goes_on(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aveyb_retrieval.indexes.changes.update.build_index", interrupted)
    stopped = run("build", folder, "-o", tmp_path / "ix", "--quiet")
    assert stopped.exit_code == 130
    assert (
        stopped.stderr
        == "aveyb-index build: interrupted; the same command continues where this one stopped\n"
    )


def test_a_mistyped_path_is_not_looked_for_on_a_hub(run: Run, tmp_path: Path) -> None:
    for mistyped in ("handbok", "docs/handbok", "some words"):
        failed = run("build", mistyped, "-o", tmp_path / "ix")
        assert failed.exit_code == 2
        assert f"{mistyped}: no such file or folder" in failed.stderr
