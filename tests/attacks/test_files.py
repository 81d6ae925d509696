"""Files and folders that somebody has made to do harm: each costs itself, and leads
nowhere else.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.folders import list_folder
from aveyb_retrieval.documents.readers import kinds, process
from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.kinds import FileKind, kind_of
from aveyb_retrieval.documents.readers.process import FileReader
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Notice, Record, Rejected
from aveyb_retrieval.errors import InputError
from tests.indexes.fake import FakeEmbedder, load_instead
from tests.indexes.files import make_epub, make_pdf, make_zip

pytest.importorskip("pypdfium2")
pytest.importorskip("selectolax")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text("apples grow on trees")
    (tmp_path / "secret.txt").write_text("the secret")
    return folder


def texts(folder: Path, *, follow_links: bool = False) -> list[str]:
    items = read_corpus(folder, Reading(follow_links=follow_links))
    return [item.text for item in items if isinstance(item, Record)]


def test_links_to_files_and_folders_are_left_out_unless_they_are_followed(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "environ.txt").symlink_to("/proc/self/environ")
    (folder / "up").symlink_to(tmp_path)
    (folder / "corpus.jsonl").symlink_to(tmp_path / "secret.txt")
    assert texts(folder) == ["apples grow on trees"]
    reasons = {notice.reason for notice in list_folder(folder).notices}
    assert reasons == {"a link (--follow-links, follow_links)"}
    (folder / "corpus.jsonl").unlink()
    (folder / "environ.txt").unlink()
    found = texts(folder, follow_links=True)  # the folder above holds this one, which is read once
    assert sorted(found) == ["apples grow on trees", "the secret", "the secret"]
    assert texts(folder / "link.txt") == ["the secret"]  # asked for by its name
    report = build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    assert (report.documents, len(report.notices)) == (1, 2)


def test_a_link_that_takes_the_place_of_a_listed_file_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(Unreadable, match="cannot be read"):
        kinds.read_bytes(folder / "a.txt", follow_links=False)


def test_names_of_any_bytes_are_ids_and_reasons(folder: Path, tmp_path: Path) -> None:
    raw = os.fsencode(folder)
    with open(raw + b"/bad\xff.txt", "w") as out:  # a path of bytes  # noqa: PTH123
        out.write("pears")
    with open(raw + b"/worse\xfe\x1b[2J\n.txt", "wb") as out:  # noqa: PTH123
        out.write(b"caf\xe9")
    report = build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    assert (report.documents, report.rejected) == (2, 1)
    assert report.rejected_file is not None
    assert "worse\\xfe" in json.loads(report.rejected_file.read_text(encoding="utf-8"))["file"]
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        assert [d.id for d in retriever.documents()] == ["a.txt", "bad\\xff.txt"]
    again = sync_index(folder, tmp_path / "ix", model=FakeEmbedder())
    # told once
    assert (again.rejected, ["worse\\xfe" in notice.path for notice in again.known]) == (0, [True])
    folder.rename(os.fsdecode(os.fsencode(tmp_path) + b"/f\xff"))
    moved = build_index(
        os.fsdecode(os.fsencode(tmp_path) + b"/f\xff"), tmp_path / "moved", model=FakeEmbedder()
    )
    assert moved.documents == 2


def test_what_terminals_show_has_no_control_characters(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_instead(monkeypatch, lambda *_, **__: FakeEmbedder())
    (folder / "\x1b]0;owned\x07.md").write_text("# t\x1b[31m \u202e title\n\nred \x9b1m words")
    (folder / "\x1b]0;owned\x07.txt").write_bytes(b"\xff")
    (folder / "\x1b]0;owned\x07.xyz").write_bytes(b"x")
    run = CliRunner().invoke
    shown = run(
        main, ["build", str(folder), "-o", str(tmp_path / "ix"), "--quiet", "--verbose"]
    ).output
    shown += run(
        main, ["build", str(folder / "\x1b]0;owned\x07.txt"), "-o", str(tmp_path / "i2")]
    ).output
    shown += run(
        main, ["sync", str(folder), "-o", str(tmp_path / "ix"), "--dry-run", "--verbose"]
    ).output
    shown += run(main, ["search", str(tmp_path / "ix"), "red words"]).output
    assert "\\x1b]0;owned\\x07" in shown
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)


def test_folders_of_any_depth_and_folders_that_cannot_be_listed(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "a.txt").write_text("apples grow on trees")
    home = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for _ in range(2200):  # more characters than a path may have
            os.mkdir("d")  # noqa: PTH102
            os.chdir("d")
        os.fchdir(home)
        (folder.joinpath(*["d"] * 1500) / "deep.txt").write_text("found")
        items = list(read_corpus(folder))
        assert [item.text for item in items if isinstance(item, Record)] == [
            "apples grow on trees",
            "found",
        ]
        (left,) = [item for item in items if isinstance(item, Rejected)]
        assert left.reason == "cannot be read (File name too long)"
        assert left.stops("stop")
        assert not left.stops("auto")
        build_index(folder, tmp_path / "ix", model=FakeEmbedder())
        with pytest.raises(InputError, match="would count as deleted"):
            sync_index(folder, tmp_path / "ix", model=FakeEmbedder())
    finally:
        os.fchdir(home)
        os.close(home)
        subprocess.run(["rm", "-rf", folder], check=True)  # deeper than Python's own removal goes


def test_markdown_of_blanks_is_read_at_once(folder: Path) -> None:
    (folder / "heading.md").write_text("# " + " " * 300_000)
    (folder / "front.md").write_text("---\ntitle: a" + " " * 300_000 + "b\n---\ntext")
    # a file has a minute; it took hours
    found = {item.id: item for item in read_corpus(folder) if isinstance(item, Record)}
    assert "heading.md" in found
    assert found["front.md"].title == "a b"


def test_the_bytes_that_are_hashed_are_those_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"first"))
    read = kinds.read_bytes

    def then_another(path: Path, **options: bool) -> bytes:
        data = read(path, **options)
        path.unlink()
        os.mkfifo(path)  # opened again, it would be waited for
        return data

    monkeypatch.setattr(kinds, "read_bytes", then_another)
    found, digest = kinds.read_file(path, FileKind("text", ".gz"), Limits(100))
    assert found.text == "first"
    assert len(digest) == 64


def test_a_spine_that_names_a_page_again_and_again_is_read_once(tmp_path: Path) -> None:
    book = make_epub(["<body><p>" + "word " * 200 + "</p></body>"])
    again = _edited(
        book, "OPS/book.opf", b'<itemref idref="c0"/>', b'<itemref idref="c0"/>' * 20_000
    )
    (tmp_path / "a.epub").write_bytes(again)
    (record,) = [item for item in read_corpus(tmp_path / "a.epub") if isinstance(item, Record)]
    assert record.text.count("word") == 200


def _edited(archive: bytes, name: str, old: bytes, new: bytes) -> bytes:
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        files = {member: opened.read(member) for member in opened.namelist()}
    assert old in files[name]
    return make_zip(files | {name: files[name].replace(old, new)})


def test_titles_and_reasons_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "a.epub").write_bytes(
        make_epub(["<body><p>text</p></body>"], title="t" * 2_000_000)
    )
    items = list(read_corpus(tmp_path))
    (record,) = [item for item in items if isinstance(item, Record)]
    (notice,) = [item for item in items if isinstance(item, Notice)]
    assert len(record.title) == 1000
    assert notice.reason == "a title of 2,000,000 characters, of which 1,000 are kept"
    spine = _edited(
        make_epub(["<body/>"]), "OPS/book.opf", b'idref="c0"', b'idref="' + b"x" * 5_000_000 + b'"'
    )
    (tmp_path / "a.epub").write_bytes(spine)
    (rejected,) = [item for item in read_corpus(tmp_path) if isinstance(item, Rejected)]
    assert len(rejected.reason) == 300


def test_files_are_read_in_a_limited_process(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 10_000_000)
    kind = kind_of(path)
    assert kind is not None
    with FileReader(Limits(1 << 30), seconds=1) as reader:
        assert len(reader.read(path, kind)[0].text) == 10_000_000
        assert reader._process is not None
        lines = Path(f"/proc/{reader._process.pid}/limits").read_text().splitlines()[1:]
        limits = {line[:25].strip(): line[25:].split()[0] for line in lines}
    assert limits["Max core file size"] == "0"
    assert int(limits["Max address space"]) == process.MEMORY <= 4 << 30


def test_a_file_has_a_budget_and_a_build_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf([["words"]]))
    kind = kind_of(path)
    assert kind is not None
    spinning = (
        "import sys, json, resource\n"
        "for line in sys.stdin:\n"
        "    seconds = json.loads(line)['seconds']\n"
        "    print(json.dumps({'reason': f'had {seconds} s', 'last': True}), flush=True)\n"
    )
    monkeypatch.setattr(process, "_START", spinning)
    monkeypatch.setattr(process, "LOST_SECONDS", 0.01)
    with FileReader(Limits(100), seconds=30) as reader:
        for seconds in (30, 5, 5):
            with pytest.raises(Unreadable, match=f"had {seconds} s"):
                reader.read(path, kind)
    loop = (
        "import sys, resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 2));"
        " sys.stdin.readline()\nwhile 1: pass"
    )
    monkeypatch.setattr(process, "_START", loop)
    with (
        FileReader(Limits(100), seconds=1) as reader,
        pytest.raises(Unreadable, match=r"more than 1 s .*--file-seconds"),
    ):
        reader.read(path, kind)


def hostile_files(folder: Path) -> list[Path]:
    """One file of each kind that costs much: those that the server's benchmark indexes beside a
    polite client.
    """
    path = Path(__file__).parents[2] / "benchmarks" / "cpu" / "hostile.py"
    spec = importlib.util.spec_from_file_location("hostile", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_files(folder)  # type: ignore[no-any-return]


# of two of a format the second
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_files_that_cost_much_cost_their_seconds_and_nobody_else(folder: Path, every: int) -> None:
    """Nested and endless HTML, a PDF that draws itself, pages and paragraphs by the million."""
    dumps = set(Path.cwd().glob("core*"))
    with FileReader(Limits(), seconds=1) as reader:
        for path in hostile_files(folder)[every - 1 :: every]:
            kind = kind_of(path)
            assert kind is not None
            began = os.times()
            with suppress(Unreadable):
                assert reader.read(path, kind)[0].text
            ended = os.times()
            used = (
                ended.children_user
                + ended.children_system
                - began.children_user
                - began.children_system
            )
            assert used < 5, path.name
    assert set(Path.cwd().glob("core*")) == dumps


def test_parquet_of_a_repeated_giant_stays_within_memory(tmp_path: Path) -> None:
    giant = pyarrow.array(["x" * 10_000_000]).dictionary_encode()
    repeated = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 200, pyarrow.int32()), giant.dictionary
    )
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": repeated}), path, compression="zstd")
    assert path.stat().st_size < 5_000
    items = read_corpus(path, Reading(max_line=20_000_000))
    assert all(len(next(items).text) == 10_000_000 for _ in range(3))  # type: ignore[union-attr]
    rejected = list(read_corpus(path, Reading(max_line=1_000_000)))
    assert len(rejected) == 200
    assert all(
        isinstance(item, Rejected) and "at most 1,000,000" in item.reason for item in rejected
    )


def test_a_package_that_is_missing_costs_the_files_that_need_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "b.pdf").write_bytes(make_pdf([["words"]]))
    monkeypatch.setattr(kinds, "PACKAGES", {"pdf": ("no_such_package", "files")})
    (left,) = [item for item in read_corpus(folder) if isinstance(item, Rejected)]
    assert "[files]'" in left.reason and "pip install" in left.reason
    (folder / "a.txt").unlink()
    with pytest.raises(
        InputError, match=r"none of the 1 items .* the first: .*b\.pdf: .*pip install"
    ):
        build_index(folder, folder.parent / "ix", model=FakeEmbedder())
    assert sys.modules.get("no_such_package") is None
