"""Small files of every kind that is read, made here: PDF, DOCX, EPUB, PPTX, XLSX."""

from __future__ import annotations

import io
import zipfile
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _character_map(read_as: Mapping[str, str]) -> str:
    """A stream that says which characters the letters of a font stand for: most for themselves."""
    codes = {code: chr(code) for code in range(0x20, 0x7F)}
    codes |= {ord(letter): text for letter, text in read_as.items()}
    lines = [
        f"1 beginbfchar\n<{code:02X}> <{text.encode('utf-16-be').hex()}>\nendbfchar"
        for code, text in codes.items()
    ]
    content = "\n".join(
        ["begincmap", "1 begincodespacerange\n<00> <FF>\nendcodespacerange", *lines, "endcmap"]
    )
    return f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"


def make_pdf(
    pages: Sequence[Sequence[str]],
    *,
    title: str = "",
    labels: str = "",
    bookmarks: Sequence[tuple[str, int]] = (),
    images: Sequence[int] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
    read_as: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """A PDF with the given lines on each page.

    `labels` is the dictionary /PageLabels, such as "/Nums [0 << /S /r >>]"; `bookmarks` are (title,
    index of a page); `images` are indexes of pages that show a picture; `sizes` of type are those
    of lines that are not of 12 points. `read_as` says which characters some letters stand for.
    """
    count = len(pages)
    map_number = 6 + 2 * count + len(bookmarks)
    to_unicode = f"/ToUnicode {map_number + 1} 0 R" if read_as else ""
    first_page, first_bookmark = 6, 6 + 2 * count
    kids = " ".join(f"{first_page + 2 * i} 0 R" for i in range(count))
    named = f"/PageLabels << {labels} >>" if labels else ""
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R /Outlines 4 0 R {named} >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        f"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica {to_unicode} >>",
        f"<< /Type /Outlines /Count {len(bookmarks)} "
        + (
            f"/First {first_bookmark} 0 R /Last {first_bookmark + len(bookmarks) - 1} 0 R >>"
            if bookmarks
            else ">>"
        ),
        (
            "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray"
            " /BitsPerComponent 8 /Length 1 >>\nstream\nx\nendstream"
        ),
    ]
    for index, lines in enumerate(pages):
        drawn = "".join(
            f"BT /F1 {sizes.get(line, 12)} Tf 72 {720 - 20 * n} Td ({_escape(line)}) Tj ET\n"
            for n, line in enumerate(lines)
        )
        drawn += "q 100 0 0 100 72 72 cm /Im Do Q\n" if index in images else ""
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents"
            f" {first_page + 2 * index + 1} 0 R /Resources << /Font << /F1 3 0 R >> /XObject << /Im"
            " 5 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}endstream")
    for n, (name, page) in enumerate(bookmarks):
        following = f"/Next {first_bookmark + n + 1} 0 R" if n + 1 < len(bookmarks) else ""
        before = f"/Prev {first_bookmark + n - 1} 0 R" if n else ""
        target = f"/Dest [{first_page + 2 * page} 0 R /Fit]"
        objects.append(
            f"<< /Title ({_escape(name)}) /Parent 4 0 R {target} {following} {before} >>"
        )
    objects.append(f"<< /Title ({_escape(title)}) >>")
    if read_as:
        assert len(objects) == map_number
        objects.append(_character_map(read_as))
    out = io.BytesIO(b"")
    out.write(b"%PDF-1.4\n")
    places = []
    for number, content in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1"))
    table = out.tell()
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode())
    out.write("".join(f"{place:010d} 00000 n \n" for place in places).encode())
    out.write(
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info {map_number} 0 R >>\n"
        f"startxref\n{table}\n%%EOF\n".encode()
    )
    return out.getvalue()


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def make_docx(
    paragraphs: Sequence[tuple[str, str]], *, title: str = "", table: Sequence[Sequence[str]] = ()
) -> bytes:
    """A document of Word: (style, text) of each paragraph, then a table."""
    import docx

    document = docx.Document()
    document.core_properties.title = title
    for style, text in paragraphs:
        document.add_paragraph(text, style=style or None)
    if table:
        rows = document.add_table(len(table), len(table[0]))
        for row, cells in zip(rows.rows, table, strict=True):
            for cell, text in zip(row.cells, cells, strict=True):
                cell.text = text
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def make_epub(chapters: Sequence[str], *, title: str = "Book", encrypted: bool = False) -> bytes:
    """A book whose chapters are bodies of XHTML."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr(
            "META-INF/container.xml",
            '<?xml version="1.0"?><container'
            ' xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile'
            ' full-path="OPS/book.opf"'
            ' media-type="application/oebps-package+xml"/></rootfiles></container>',
        )
        if encrypted:
            book.writestr(
                "META-INF/encryption.xml",
                "<encryption"
                ' xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:EncryptedData><enc:CipherData><enc:CipherReference'
                ' URI="OPS/c0.xhtml"/></enc:CipherData></enc:EncryptedData></encryption>',
            )
        items = "".join(
            f'<item id="c{i}" href="c{i}.xhtml" media-type="application/xhtml+xml"/>'
            for i in range(len(chapters))
        )
        spine = "".join(f'<itemref idref="c{i}"/>' for i in range(len(chapters)))
        book.writestr(
            "OPS/book.opf",
            '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"'
            f' xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>{title}</dc:title></metadata><manifest><item'
            ' id="nav" href="nav.xhtml" media-type="application/xhtml+xml"'
            f' properties="nav"/>{items}</manifest><spine><itemref'
            f' idref="nav"/>{spine}</spine></package>',
        )
        book.writestr("OPS/nav.xhtml", "<html><body><nav>contents</nav></body></html>")
        for i, body in enumerate(chapters):
            book.writestr(
                f"OPS/c{i}.xhtml",
                '<?xml version="1.0"?><html'
                f' xmlns="http://www.w3.org/1999/xhtml"><head><title/></head>{body}</html>',
            )
    return out.getvalue()


def make_zip(files: dict[str, bytes]) -> bytes:
    """A ZIP archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def make_pptx() -> bytes:
    import pptx
    from pptx.util import Inches

    show = pptx.Presentation()
    show.core_properties.title = "Training"
    for title, text in (("Pumps", "Close the valve"), ("Filters", "Wash them")):
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
    slide.notes_slide.notes_text_frame.text = "Say it twice"
    table = slide.shapes.add_table(1, 2, Inches(1), Inches(1), Inches(2), Inches(1)).table
    table.cell(0, 0).text, table.cell(0, 1).text = "left", "right"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = "in a group"
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def make_xlsx(rows: list[list[object]], name: str = "Prices") -> bytes:
    import xlsxwriter

    out = io.BytesIO()
    with xlsxwriter.Workbook(out) as book:
        for sheet_name in (name, "Empty", "Last"):
            sheet = book.add_worksheet(sheet_name)
            for number, row in enumerate(rows if sheet_name != "Empty" else []):
                sheet.write_row(number, 0, row)
    return out.getvalue()
