"""Readers of files: text, headings and pages as they are in the file, and one line for a file that cannot be read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.encoder.text.outline import outline
from aveyb_retrieval.errors import OptionalDependencyError
from aveyb_retrieval.indexes.input.documents import FieldNames, Rejected
from aveyb_retrieval.indexes.input.readers import formats, process
from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable
from aveyb_retrieval.indexes.input.readers.formats import kind_of
from aveyb_retrieval.indexes.input.readers.process import FileReader
from aveyb_retrieval.indexes.pages import Pages
from tests.indexes.files import make_docx, make_epub, make_pdf, make_zip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("pypdfium2")
pytest.importorskip("selectolax")
pytest.importorskip("docx")

Read = "Callable[[str, bytes], FileText]"


@pytest.fixture(scope="module")
def reader() -> Iterator[FileReader]:
    with FileReader(None, 1 << 20) as found:
        yield found


@pytest.fixture
def read(reader: FileReader, tmp_path: Path) -> Callable[[str, bytes], FileText]:
    def read(name: str, data: bytes) -> FileText:
        path = tmp_path / name
        path.write_bytes(data)
        kind = kind_of(path)
        assert kind is not None
        return reader.read(path, kind)[0]

    return read


def reason(read: Callable[[str, bytes], FileText], name: str, data: bytes) -> str:
    with pytest.raises(Unreadable) as caught:
        read(name, data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pdf_has_pages_labels_title_and_headings(read: Callable[[str, bytes], FileText]) -> None:
    pages = [["Preface words"], ["2.1 Valves", "close the valve"], [], ["the end (really)"]]
    labels = "/Nums [0 << /S /r >> 1 << /S /D /St 1 >>]"
    found = read("a.pdf", make_pdf(pages, title="Pump  manual", labels=labels, bookmarks=[("Valves", 1)]))
    assert found.title == "Pump manual"
    assert found.pages is not None
    assert found.pages.labels == ("i", "1", "2", "3")
    for word, number in (("Preface", 1), ("Valves", 2), ("valve", 2), ("really", 4)):
        assert found.pages.at(found.text.index(word)).number == number
    assert found.text[found.pages.starts[1] : found.pages.starts[2]].startswith("## 2.1 Valves\n") or (
        "# 2.1 Valves\n" in found.text
    )
    assert found.warning == ""
    plain = read("b.pdf", make_pdf([["one"], ["two"]], title="untitled.tex"))
    assert (plain.title, plain.pages) == ("", Pages((0, 4)))


def test_headings_of_a_pdf_without_bookmarks_are_larger(read: Callable[[str, bytes], FileText]) -> None:
    plain = [f"a line of the text number {n}" for n in range(8)]
    page = ["Pumps and", "their valves", *plain, "2 Filters", *plain]
    sizes = {"Pumps and": 24, "their valves": 24, "2 Filters": 16}
    data = make_pdf([page, ["2 Filters", *plain]], sizes=sizes)
    found = read("a.pdf", data)
    headings = [line for line in found.text.split("\n") if line.startswith("#")]
    assert headings == ["# Pumps and their valves", "## 2 Filters", "## 2 Filters"]
    assert found.pages is not None
    assert found.text[found.pages.starts[1] :].startswith("## 2 Filters\n")
    named = read("b.pdf", make_pdf([page], sizes=sizes, bookmarks=[("Filters", 0)]))
    assert [line for line in named.text.split("\n") if line.startswith("#")] == ["# 2 Filters"]
    shouted = read("c.pdf", make_pdf([["LARGE WORDS"] * 3 + ["small"] * 3], sizes={"LARGE WORDS": 24}))
    assert "#" not in shouted.text


def test_pages_without_text_are_reported(read: Callable[[str, bytes], FileText]) -> None:
    found = read("a.pdf", make_pdf([["words"], [], ["more"]], images=[1]))
    assert found.warning == "1 of 3 pages are pictures without text, probably scanned: 2"
    assert "scanned" in reason(read, "scan.pdf", make_pdf([[], []], images=[0, 1]))
    assert read("blank.pdf", make_pdf([[], []])).text == ""


def test_html_loses_what_surrounds_the_text_and_keeps_its_headings(read: Callable[[str, bytes], FileText]) -> None:
    page = """<!doctype html><html><head><title>The  page</title><style>p {}</style></head><body>
    <nav>menu</nav><header>banner</header><div class="sphinxsidebar">side</div><script>var x = "<p>";</script>
    <h1>Pumps<a class="headerlink">#</a></h1><p>Close the <b>va</b>lve,<br>then  wait &amp; see.</p>
    <ul><li>one<li>two</ul><table><tr><th>a<th>b<tr><td>1<td>2</table><pre>  x
    y</pre><p hidden>secret</p><footer>imprint</footer></body></html>"""
    found = read("a.html", page.encode())
    assert found.title == "The page"
    assert found.text == (
        "# Pumps\n\nClose the valve,\nthen wait & see.\n\n- one\n- two\n\na | b\n1 | 2\n\n  x\n    y".strip()
    )
    manual = read("c.html", b"<body><h1>Install</h1><pre># become root\nsudo -i</pre>").text
    assert [words for _, words in outline(manual).headings] == ["Install"]
    inside = read("b.html", b"<body><p>around<main><header><p>kept</header><p>text</main>")
    assert inside.text == "kept\n\ntext"


def test_a_box_in_a_text_is_kept_where_a_sidebar_of_links_is_dropped(read: Callable[[str, bytes], FileText]) -> None:
    box = b"<div class='sidebar'><p><b>Caution</b> Names of <a href='z'>zones</a> are reversed.</p></div>"
    links = b"<div class='sidebar'>See <a href='a'>the first chapter</a> <a href='b'>the second</a></div>"
    assert read("a.html", b"<p>before</p>" + box + links + b"<p>after</p>").text == (
        "before\n\nCaution Names of zones are reversed.\n\nafter"
    )


def test_html_is_decoded_as_it_says(read: Callable[[str, bytes], FileText], tmp_path: Path) -> None:
    assert read("a.html", b'<meta charset="iso-8859-1"><p>caf\xe9').text == "caf\u00e9"
    assert read("b.htm", b"\xff\xfe" + "<p>caf\u00e9".encode("utf-16-le")).text == "caf\u00e9"
    assert reason(read, "c.html", b"<p>caf\xe9") == (
        "invalid UTF-8 at byte 6 (0xe9); name its encoding by --encoding (encoding)"
    )
    assert reason(read, "c.txt", b"\xff\xfea\x00\xfa") == (
        "byte 4 (0xfa) is not utf-16-le; --encoding (encoding) names another one"  # its mark counts
    )
    path = tmp_path / "d.txt"
    path.write_bytes(b"caf\xe9 \x81")
    kind = kind_of(path)
    assert kind is not None
    with FileReader("cp1252", 100) as other:
        with pytest.raises(Unreadable, match=r"byte 5 \(0x81\) is not cp1252"):
            other.read(path, kind)
        path.write_bytes(b"caf\xe9")
        assert other.read(path, kind)[0].text == "caf\u00e9"


def test_a_document_of_word_keeps_headings_lists_tables_and_tracked_text(
    read: Callable[[str, bytes], FileText],
) -> None:
    paragraphs = [("Heading 1", "Pumps"), ("", "Close the valve."), ("List Bullet", "one"), ("Heading 2", "Filters")]
    data = make_docx(paragraphs, title="Manual", table=[["a", "b"], ["1", "2"]])
    found = read("a.docx", data)
    assert found.title == "Manual"
    lines = [line for line in found.text.split("\n") if line]
    assert lines == ["# Pumps", "Close the valve.", "- one", "## Filters", "a | b", "1 | 2"]
    inserted = b"<w:t>Close</w:t></w:r><w:ins><w:r><w:t> it</w:t></w:r></w:ins>"
    deleted = b"<w:del><w:r><w:delText>never</w:delText></w:r></w:del><w:r>"
    tracked = _edit_docx(data, b"<w:t>Close the valve.</w:t>", inserted + deleted)
    assert "Close it\n" in read("b.docx", tracked).text


def _edit_docx(data: bytes, old: bytes, new: bytes) -> bytes:
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert old in files["word/document.xml"]
    files["word/document.xml"] = files["word/document.xml"].replace(old, new)
    return make_zip(files)


def test_a_book_is_read_in_the_order_of_its_spine(read: Callable[[str, bytes], FileText]) -> None:
    found = read("a.epub", make_epub(["<body><h1>One</h1><p>first</p></body>", "<body><p>second</p></body>"]))
    assert (found.title, found.text) == ("Book", "# One\n\nfirst\n\nsecond")
    assert "protected" in reason(read, "b.epub", make_epub(["<body/>"], encrypted=True))


def test_front_matter_is_taken_off(read: Callable[[str, bytes], FileText]) -> None:
    found = read("a.md", b"---\ntitle: 'Pumps'\ntags: [a]\n---\n\n# Heading\ntext\n")
    assert (found.title, found.text) == ("Pumps", "# Heading\ntext\n")
    assert read("b.md", b"# Heading #\ntext").title == "Heading"
    rule = b"---\n\nno front matter\n\n---\n"
    assert read("c.md", rule).text == rule.decode()
    toml = read("d.md", b'+++\ntitle = "T"\n+++\nbody')
    assert (toml.title, toml.text) == ("T", "body")


DEEP_XML = b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "' + b"y" * 1000 + b'">' + b"".join(
    b'<!ENTITY x%d "%s">' % (i, (b"&x%d;" % (i - 1) if i else b"&x;") * 10) for i in range(9)
) + b"]><a>&x8;</a>"  # fmt: skip
HOSTILE = {
    "garbage.pdf": (b"%PDF-1.4 nothing", "not a PDF file"),
    "cut.pdf": (make_pdf([["words"]])[:300], "not a PDF file"),
    "empty.pdf": (b"", "not a PDF file"),
    "garbage.docx": (b"PK\x03\x04 nothing", "not a ZIP archive"),
    "office97.docx": (bytes.fromhex("d0cf11e0a1b11ae1") + b"x" * 600, "encrypted, or in the format of Office 97"),
    "other.docx": (make_zip({"a.txt": b"x"}), "not a document of Word"),
    "bomb.docx": (make_zip({"word/document.xml": b" " * (257 << 20)}), "at most 268,435,456 bytes are read"),
    "bomb.zip": (make_zip({"a.txt": b" " * (257 << 20)}), "at most 268,435,456 bytes are read"),
    "entities.epub": (make_zip({"META-INF/container.xml": DEEP_XML}), "damaged"),
    "no-opf.epub": (make_zip({"mimetype": b"application/epub+zip"}), "no 'META-INF/container.xml'"),
    "long.txt": (b"x" * ((1 << 20) + 1), "1,048,577 bytes, at most 1,048,576"),
    "bomb.html.gz": (__import__("gzip").compress(b" " * (2 << 20)), "more than 1,048,576 bytes unpacked"),
    "cut.txt.gz": (__import__("gzip").compress(os.urandom(5000))[:-9], "ends in the middle"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_in_one_line(read: Callable[[str, bytes], FileText], name: str) -> None:
    data, words = HOSTILE[name]
    assert words in reason(read, name, data)


def test_broken_references_and_ten_thousand_pages_end(read: Callable[[str, bytes], FileText]) -> None:
    broken = make_pdf([["words of a page"]]).replace(b"startxref\n", b"startxref\n9")
    assert "words" in read("xref.pdf", broken).text  # PDFium finds the objects by itself
    many = read("many.pdf", make_pdf([[f"page {n}"] for n in range(1, 10_001)]))
    assert many.pages is not None
    assert many.pages.at(many.text.index("page 9999\n")).number == 9999
    deep = read("deep.html", b"<div>" * 50_000 + b"bottom")
    assert deep.text == "bottom"


def test_what_is_no_plain_file_is_not_waited_for(reader: FileReader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "folder.txt").mkdir()
    for name in ("a.txt", "folder.txt", "missing.txt"):
        kind = kind_of(tmp_path / name)
        assert kind is not None
        with pytest.raises(Unreadable, match=r"not a plain file|cannot be read"):
            reader.read(tmp_path / name, kind)


def test_a_reader_that_crashes_or_takes_too_long_costs_one_file(
    reader: FileReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf([["words"]]))
    kind = kind_of(path)
    assert kind is not None
    reader.read(path, kind)
    assert reader._process is not None
    os.kill(reader._process.pid, 24)  # SIGXCPU, as the limit of processor time sends it
    reader._process.wait()
    assert reader.read(path, kind)[0].text == "words\n"  # another process was started
    monkeypatch.setattr(process, "_START", "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 24)")
    with FileReader(None, 100) as other, pytest.raises(Unreadable, match=r"more than 120 s of processor time"):
        other.read(path, kind)
    monkeypatch.setattr(process, "_START", "import os, sys; sys.stdin.readline(); os.abort()")
    with FileReader(None, 100) as other, pytest.raises(Unreadable, match="crashed"):
        other.read(path, kind)
    monkeypatch.setattr(process, "_START", "import time; time.sleep(60)")
    monkeypatch.setattr(process, "WALL_SECONDS", 0.2)
    with FileReader(None, 100) as other, pytest.raises(Unreadable, match="took more than"):
        other.read(path, kind)


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf([["words"]]))
    kind = kind_of(path)
    assert kind is not None
    monkeypatch.setattr(formats, "PACKAGES", {"pdf": ("no_such_package", "files")})
    with FileReader(None, 100) as reader, pytest.raises(OptionalDependencyError, match=r"pip install .*\[files\]"):
        reader.read(path, kind)


def test_answers_that_arrive_together_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = '{"rows": [{"row": 1, "reason": "bad", "raw": ""}]}\n{"rows": null}\n'
    start = f"import sys; sys.stdin.readline(); sys.stdout.write({answers!r}); sys.stdout.flush(); sys.stdin.readline()"
    monkeypatch.setattr(process, "_START", start)
    with FileReader(None, 1000) as reader:
        (rejected,) = reader.read_rows(tmp_path / "a.parquet", FieldNames())
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "bad"


def test_pages_are_checked() -> None:
    pages = Pages((0, 5, 5, 9), ("i", "ii", "1", "2"))
    assert [pages.at(i) for i in (0, 4, 5, 8, 100)] == [
        (1, "i", "page"), (1, "i", "page"), (3, "1", "page"), (3, "1", "page"), (4, "2", "page")
    ]  # fmt: skip
    for unit in ("page", "slide"):
        same = Pages((0, 5), (), unit)
        assert Pages.from_json(json.loads(same.to_json())) == same
    assert "unit" not in pages.to_json()
    assert Pages((0, 3)).at(3) == (2, "2", "page")
    assert [page.number for page in pages.range(3, 6)] == [1, 3]
    assert [page.number for page in pages.range(4, 5)] == [page.number for page in pages.range(4, 4)] == [1, 1]
    assert str(Pages((0, 3), ("0:01", "0:02"), "time").at(3)) == "time 0:02"
    assert Pages.from_json(json.loads(pages.to_json())) == pages
    for bad in ({"starts": [], "labels": []}, {"starts": [1], "labels": []}, {"starts": [0, 5, 2], "labels": []},
                {"starts": [0], "labels": ["a", "b"]}, {"starts": [0, True], "labels": []}, {"starts": 0, "labels": []},
                {"starts": [0], "labels": [5]}, {"starts": [0]}, [], None,
                {"starts": [0], "labels": [], "unit": "chapter"}, {"starts": [0], "labels": [], "x": 1}):  # fmt: skip
        with pytest.raises(ValueError, match="page"):
            Pages.from_json(bad)
