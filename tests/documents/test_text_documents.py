"""PDF, HTML, DOCX, ODT, RTF, EPUB, Markdown and transcripts: text, headings, titles and pages, as
the file has them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.kinds import kind_of
from aveyb_retrieval.documents.readers.process import FileReader
from aveyb_retrieval.documents.records import Pages
from aveyb_retrieval.encoder.text.passages import outline
from tests.documents.conftest import label, reason
from tests.indexes.files import make_docx, make_epub, make_pdf, make_zip

if TYPE_CHECKING:
    from pathlib import Path

    from tests.documents.conftest import Read

for package in ("pypdfium2", "selectolax", "docx", "lxml", "striprtf"):
    pytest.importorskip(package)


def test_a_pdf_has_pages_labels_title_and_headings(read: Read) -> None:
    pages = [["Preface words"], ["2.1 Valves", "close the valve"], [], ["the end (really)"]]
    labels = "/Nums [0 << /S /r >> 1 << /S /D /St 1 >>]"
    found = read(
        "a.pdf", make_pdf(pages, title="Pump  manual", labels=labels, bookmarks=[("Valves", 1)])
    )
    assert found.title == "Pump manual"
    assert found.pages is not None
    assert found.pages.labels == ("i", "1", "2", "3")
    for word, number in (("Preface", 1), ("Valves", 2), ("valve", 2), ("really", 4)):
        assert found.pages.at(found.text.index(word)).number == number
    assert found.text[found.pages.starts[1] : found.pages.starts[2]].startswith(
        "## 2.1 Valves\n"
    ) or ("# 2.1 Valves\n" in found.text)
    assert found.warning == ""
    plain = read("b.pdf", make_pdf([["one"], ["two"]], title="untitled.tex"))
    assert (plain.title, plain.pages) == ("", Pages((0, 4)))


def test_headings_of_a_pdf_without_bookmarks_are_larger(read: Read) -> None:
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
    shouted = read(
        "c.pdf", make_pdf([["LARGE WORDS"] * 3 + ["small"] * 3], sizes={"LARGE WORDS": 24})
    )
    assert "#" not in shouted.text


def test_page_headers_and_footers_are_read_once(read: Read) -> None:
    pages = [
        [
            "Plant Handbook",
            f"tank {n} holds {50 + n} litres",
            *(f"page {n} has line {i}" for i in range(30)),
            "the end",
            f"Valid until May - page {n} of 4",
        ]
        for n in range(1, 5)
    ]
    found = read("a.pdf", make_pdf(pages))
    assert (found.text.count("Plant Handbook"), found.text.count("Valid until May")) == (1, 1)
    for n in range(1, 5):
        assert f"tank {n} holds {50 + n} litres" in found.text, (
            "another number than the page's says something else"
        )
    assert found.pages is not None
    assert found.pages.at(found.text.index("tank 3")).number == 3
    few = read("b.pdf", make_pdf(pages[:2]))
    assert few.text.count("Plant Handbook") == 2


def test_a_last_line_in_the_middle_of_a_page_is_no_footer(read: Read) -> None:
    results = ["passed", "failed", "passed", "failed", "passed", "passed"]
    pages = [[*(f"boiler {n} was tested, part {i}" for i in range(4)), f"Result: {result}"]
             for n, result in enumerate(results)]  # fmt: skip
    text = read("a.pdf", make_pdf(pages)).text
    assert [line.split()[1] for line in text.split("\n") if line.startswith("Result")] == results


RUNNING = (
    "Page {n}",
    "{n}",
    "- {n} -",
    "Page {n} of {all}",
    "{n} / {all}",
    "Acme Handbook {n}",
    "{n} Acme Handbook",
    "p.{n}",
    "Acme Handbook | {n}",
    "Seite {n} von {all}",
    "Acme {n}/{all}",
    "Confidential - {n} -",
    "Confidential, Page {n}",
)
NAMES = (
    "Lot {n}",
    "Schedule {n}",
    "§ {n}",
    "Chapter {n}:",
    "Exhibit B-{n}",
    "Statement {n}/2024",
    "Version 1.{n}",
    "Monthly Statement {n}/2024",
    "{n}. Introduction",
    "tank {n} is full",
)


@pytest.mark.parametrize("line", [*RUNNING, *NAMES])
def test_a_number_that_is_the_page_s_by_chance_is_kept(read: Read, line: str) -> None:
    pages = [
        [line.format(n=n, all=6), *(f"line {n * 31 + i} of text" for i in range(6))]
        for n in range(1, 7)
    ]
    text = read("a.pdf", make_pdf(pages)).text.replace("\n", " ")
    kept = sum(f"{line.format(n=n, all=6)} line" in f" {text}" for n in range(1, 7))
    assert kept == (1 if line in RUNNING else 6)


@pytest.mark.parametrize("marked", ["bookmarks", "sizes"])
def test_a_title_with_the_page_s_number_is_kept(read: Read, marked: str) -> None:
    titles = [f"Annual Meeting {n}" for n in range(1, 7)]
    pages = [
        [title, *(f"line {n * 31 + i} of text" for i in range(9))]
        for n, title in enumerate(titles, 1)
    ]
    bookmarks = [(title, n) for n, title in enumerate(titles)] if marked == "bookmarks" else ()
    sizes = dict.fromkeys(titles, 18) if marked == "sizes" else {}
    text = read("a.pdf", make_pdf(pages, bookmarks=bookmarks, sizes=sizes)).text
    assert [line for line in text.split("\n") if line.startswith("#")] == [
        f"# {title}" for title in titles
    ]


def test_pages_without_text_are_reported(read: Read) -> None:
    found = read("a.pdf", make_pdf([["words"], [], ["more"]], images=[1]))
    assert re.fullmatch(r"1 of 3 pages are pictures (without words|that are .*): 2", found.warning)
    assert read("blank.pdf", make_pdf([[], []])).text == ""


def test_html_loses_what_surrounds_the_text_and_keeps_its_headings(read: Read) -> None:
    page = """<!doctype html><html><head><title>The  page</title><style>p {}</style></head><body>
    <nav>menu</nav><header>banner</header><div class="sphinxsidebar">side</div><script>var x = "<p>";</script>
    <h1>Pumps<a class="headerlink">#</a></h1><p>Close the <b>va</b>lve,<br>then  wait &amp; see.</p>
    <ul><li>one<li>two</ul><table><tr><th>a<th>b<tr><td>1<td>2</table><pre>  x
    y</pre><p hidden>secret</p><footer>imprint</footer></body></html>"""  # noqa: E501
    found = read("a.html", page.encode())
    assert found.title == "The page"
    assert (
        found.text
        == "# Pumps\n\nClose the valve,\nthen wait & see.\n\n- one\n- two\n\na | b\n1 | 2\n\n  x\n"
        "    y".strip()
    )
    manual = read("c.html", b"<body><h1>Install</h1><pre># become root\nsudo -i</pre>").text
    assert [heading.words for heading in outline(manual).headings] == ["Install"]
    inside = read("b.html", b"<body><p>around<main><header><p>kept</header><p>text</main>")
    assert inside.text == "kept\n\ntext"


def test_a_box_in_a_text_is_kept_where_a_sidebar_of_links_is_dropped(read: Read) -> None:
    box = (
        b"<div class='sidebar'><p><b>Caution</b> Names of <a href='z'>zones</a> are"
        b" reversed.</p></div>"
    )
    links = (
        b"<div class='sidebar'>See <a href='a'>the first chapter</a> <a href='b'>the"
        b" second</a></div>"
    )
    assert (
        read("a.html", b"<p>before</p>" + box + links + b"<p>after</p>").text
        == "before\n\nCaution Names of zones are reversed.\n\nafter"
    )


def test_html_is_decoded_as_it_says(read: Read, tmp_path: Path) -> None:
    assert read("a.html", b'<meta charset="iso-8859-1"><p>caf\xe9').text == "caf\u00e9"
    windows = read("b.html", b'<meta charset="iso-8859-1"><p>\x93don\x92t\x94 5 \x80').text
    assert windows == "\u201cdon\u2019t\u201d 5 \u20ac"
    chinese = '<meta charset="gb2312"><p>\u9555\u57fa'.encode("gb18030")
    assert read("c.html", chinese).text == "\u9555\u57fa"
    assert read("d.html", '<meta charset="utf-16"><p>caf\u00e9'.encode()).text == "caf\u00e9"
    assert read("b.htm", b"\xff\xfe" + "<p>caf\u00e9".encode("utf-16-le")).text == "caf\u00e9"
    assert (
        reason(read, "c.html", b"<p>caf\xe9")
        == "invalid UTF-8 at byte 6 (0xe9); name the encoding of the files that are not UTF-8 by"
        " --encoding (encoding)"
    )
    assert (
        reason(read, "c.txt", b"\xff\xfea\x00\xfa")
        # its mark counts
        == "byte 4 (0xfa) is not utf-16-le; --encoding (encoding) names another one"
    )
    path = tmp_path / "d.txt"
    path.write_bytes(b"caf\xe9 \x81")
    kind = kind_of(path)
    assert kind is not None
    with FileReader(Limits(100, "cp1252")) as other:
        with pytest.raises(Unreadable, match=r"byte 5 \(0x81\) is not cp1252"):
            other.read(path, kind)
        path.write_bytes(b"caf\xe9")
        assert other.read(path, kind)[0].text == "caf\u00e9"


def test_a_document_of_word_keeps_headings_lists_tables_and_tracked_text(
    read: Read,
) -> None:
    paragraphs = [
        ("Heading 1", "Pumps"),
        ("", "Close the valve."),
        ("List Bullet", "one"),
        ("Heading 2", "Filters"),
    ]
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


ODT = """<?xml version="1.0"?><office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0">
<office:body><office:text><text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
<text:h text:outline-level="2">Pumps</text:h><text:p>Close<text:s/>the <text:span>valve</text:span>.</text:p>
<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>
<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell><text:p>b</text:p>
</table:table-cell></table:table-row></table:table></office:text></office:body></office:document-content>"""  # noqa: E501


def test_text_documents_of_libreoffice_and_rtf(read: Read) -> None:
    meta = b'<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Manual</dc:title></m>'
    found = read("a.odt", make_zip({"content.xml": ODT.encode(), "meta.xml": meta}))
    lines = [line for line in found.text.split("\n") if line]
    assert (found.title, lines) == ("Manual", ["## Pumps", "Close the valve.", "- one", "a | b"])
    rtf = read("a.rtf", rb"{\rtf1\ansi\ansicpg1252 Caf\'e9 {\b bold}\par next}")
    assert rtf.text.split("\n")[:2] == ["Caf\u00e9 bold", "next"]
    with pytest.raises(Unreadable, match="not an RTF file"):
        read("b.rtf", b"words")


def test_a_book_is_read_in_the_order_of_its_spine(read: Read) -> None:
    found = read(
        "a.epub", make_epub(["<body><h1>One</h1><p>first</p></body>", "<body><p>second</p></body>"])
    )
    assert (found.title, found.text) == ("Book", "# One\n\nfirst\n\nsecond")
    assert "protected" in reason(read, "b.epub", make_epub(["<body/>"], encrypted=True))


def test_front_matter_is_taken_off(read: Read) -> None:
    found = read("a.md", b"---\ntitle: 'Pumps'\ntags: [a]\n---\n\n# Heading\ntext\n")
    assert (found.title, found.text) == ("Pumps", "# Heading\ntext\n")
    assert read("b.md", b"# Heading #\ntext").title == "Heading"
    rule = b"---\n\nno front matter\n\n---\n"
    assert read("c.md", rule).text == rule.decode()
    toml = read("d.md", b'+++\ntitle = "T"\n+++\nbody')
    assert (toml.title, toml.text) == ("T", "body")


def test_transcripts_have_times(read: Read) -> None:
    srt = (
        "1\n00:00:01,000 --> 00:00:04,000\nClose the\nvalve.\n\n2\n01:02:03,500 -->"
        " 01:02:05,000\n<i>Then</i> wait"
    )
    found = read("a.srt", srt.encode())
    assert found.text == "Close the valve.\nThen wait "
    assert (label(found, "valve"), label(found, "wait")) == ("time 0:00:01", "time 1:02:03")
    srt = (
        "1\n00:00:01,000 --> 00:00:04,000\nfirst\n\nsecond half\n\n2\n00:01:00,000 -->"
        " 00:01:05,000\nthird"
    )
    gap = read("c.srt", srt.encode())
    assert gap.text == "first second half third "
    assert label(gap, "half") == "time 0:00:01"
    vtt = (
        "WEBVTT\n\nNOTE made here\n\nintro\n00:05.000 --> 00:07.000"
        " align:start\n{\\an8}Hello\n\nNOTE not said\n"
    )
    assert "not said" not in read("b.vtt", vtt.encode()).text
    assert label(read("a.vtt", vtt.encode()), "Hello") == "time 0:00:05"
    with pytest.raises(Unreadable, match="no cues"):
        read("b.srt", b"words")


@pytest.mark.parametrize(
    "listing",
    [
        "````\n```\n# not a heading\n```\n````",
        "~~~~\n```\n# not a heading\n~~~~",
        "```py\n# not a heading\n```  ",
    ],
)
def test_a_listing_ends_with_the_mark_that_it_began_with(listing: str) -> None:
    assert [heading.words for heading in outline(f"# a\n\n{listing}\n\n# b\n").headings] == [
        "a",
        "b",
    ]
    assert [heading.words for heading in outline("# a\n\n```x``` is code\n\n# b\n").headings] == [
        "a",
        "b",
    ]
