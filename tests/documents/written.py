"""Files of every kind for the fuzzer of readers, written by other libraries from blocks whose words
are known.
"""

from __future__ import annotations

import io
import zipfile
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Block(NamedTuple):
    """A part of a document: "heading", "text", "list" (an item a row) or "table"; each cell holds
    some words.
    """

    kind: str
    rows: tuple[tuple[str, ...], ...]


def save_office(document: Any) -> bytes:
    """The file of a document, of slides or of a workbook that its library writes."""
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def _markup(blocks: Sequence[Block]) -> str:
    parts = []
    for kind, rows in blocks:
        if kind == "heading":
            parts.append(f"<h2>{rows[0][0]}</h2>")
        elif kind == "list":
            parts.append("<ul>" + "".join(f"<li><p>{row[0]}</p></li>" for row in rows) + "</ul>")
        elif kind == "table":
            cells = ("".join(f"<td><p>{cell}</p></td>" for cell in row) for row in rows)
            parts.append("<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>")
        else:
            parts.append(f"<div><p>{rows[0][0]}</p></div>")
    return "".join(parts)


def write_html(blocks: Sequence[Block]) -> bytes:
    return f"<!doctype html><meta charset=utf-8><main>{_markup(blocks)}</main>".encode()


def write_markdown(blocks: Sequence[Block]) -> bytes:
    return "\n\n".join("\n".join(" | ".join(row) for row in rows) for _, rows in blocks).encode()


def write_epub(blocks: Sequence[Block]) -> bytes:
    from ebooklib import epub

    book = epub.EpubBook()
    book.set_identifier("a")
    book.set_title("T")
    pages = []
    for number, block in enumerate(blocks):
        page = epub.EpubHtml(title="c", file_name=f"c{number}.xhtml")
        page.content = _markup([block])
        book.add_item(page)
        pages.append(page)
    book.spine = ["nav", *pages]
    book.add_item(epub.EpubNcx())
    book.add_item(epub.EpubNav())
    out = io.BytesIO()
    epub.write_epub(out, book)
    return out.getvalue()


def write_docx(blocks: Sequence[Block]) -> bytes:
    import docx

    document = docx.Document()
    for kind, rows in blocks:
        if kind == "heading":
            document.add_heading(rows[0][0], 2)
        elif kind == "list":
            for row in rows:
                document.add_paragraph(row[0], style="List Number")
        elif kind == "table":
            table = document.add_table(len(rows), len(rows[0]))
            for cells, row in zip(table.rows, rows, strict=True):
                for cell, text in zip(cells.cells, row, strict=True):
                    cell.text = text
        else:
            paragraph = document.add_paragraph()
            for number, word in enumerate(rows[0][0].split(" ")):  # a run for each word
                paragraph.add_run(" " * (number > 0) + word).bold = number % 2 == 0
    return save_office(document)


def write_odt(blocks: Sequence[Block]) -> bytes:
    from odf.opendocument import OpenDocumentText
    from odf.table import Table, TableCell, TableRow
    from odf.text import H, List, ListItem, P

    document = OpenDocumentText()
    for kind, rows in blocks:
        if kind == "heading":
            document.text.addElement(H(outlinelevel=2, text=rows[0][0]))
        elif kind == "list":
            listed = List()
            for row in rows:
                item = ListItem()
                item.addElement(P(text=row[0]))
                listed.addElement(item)
            document.text.addElement(listed)
        elif kind == "table":
            document.text.addElement(_odf_table(rows, Table(name="t"), TableRow, TableCell, P))
        else:
            document.text.addElement(P(text=rows[0][0]))
    return save_office(document)


def _odf_table(
    rows: Sequence[Sequence[str]], table: Any, row_of: Any, cell_of: Any, paragraph: Any
) -> Any:
    for row in rows:
        line = row_of()
        for text in row:
            cell = cell_of()
            cell.addElement(paragraph(text=text))
            line.addElement(cell)
        table.addElement(line)
    return table


def write_ods(blocks: Sequence[Block]) -> bytes:
    from odf.opendocument import OpenDocumentSpreadsheet
    from odf.table import Table, TableCell, TableRow
    from odf.text import P

    document = OpenDocumentSpreadsheet()
    for number, (_, rows) in enumerate(blocks):
        table = _odf_table(rows, Table(name=f"s{number}"), TableRow, TableCell, P)
        document.spreadsheet.addElement(table)
    return save_office(document)


def write_xlsx(blocks: Sequence[Block]) -> bytes:
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, (_, rows) in enumerate(blocks):
        sheet = book.create_sheet(f"s{number}")
        for row in rows:
            sheet.append(list(row))
    return save_office(book)


def write_pptx(blocks: Sequence[Block]) -> bytes:
    import pptx

    show = pptx.Presentation()
    for kind, rows in blocks:
        slide = show.slides.add_slide(show.slide_layouts[5])
        if kind == "heading":
            slide.shapes.title.text = rows[0][0]
        elif kind == "table":
            table = slide.shapes.add_table(len(rows), len(rows[0]), 0, 0, 100, 100).table
            for place, row in enumerate(rows):
                for column, text in enumerate(row):
                    table.cell(place, column).text = text
        else:
            slide.shapes.add_textbox(0, 0, 100, 100).text_frame.text = "\n".join(
                row[0] for row in rows
            )
    return save_office(show)


def write_pdf(blocks: Sequence[Block]) -> bytes:
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

    styles = getSampleStyleSheet()
    flow: list[Any] = []
    for kind, rows in blocks:
        if kind == "table":
            flow.append(Table([list(row) for row in rows]))
        else:
            flow += [
                Paragraph(row[0], styles["Heading2" if kind == "heading" else "BodyText"])
                for row in rows
            ]
    out = io.BytesIO()
    SimpleDocTemplate(out, pagesize=(2000, 800)).build(flow)  # wide enough for a row of any table
    return out.getvalue()


def write_rtf(blocks: Sequence[Block]) -> bytes:
    lines = (" | ".join(row) for _, rows in blocks for row in rows)
    text = "".join(f"{line}\\par\n" for line in lines)
    written = "".join(
        c if c.isascii() else f"\\u{(ord(c) + 0x8000) % 0x10000 - 0x8000}?" for c in text
    )
    return b"{\\rtf1\\ansi " + written.encode() + b"}"


def write_csv(blocks: Sequence[Block]) -> bytes:
    import csv

    out = io.StringIO()
    csv.writer(out).writerows(row for _, rows in blocks for row in rows)
    return out.getvalue().encode()


def write_subtitles(blocks: Sequence[Block]) -> bytes:
    lines = [" ".join(row) for _, rows in blocks for row in rows]
    return "\n".join(
        f"{n}\n00:00:{n % 60:02},000 --> 00:00:{n % 60:02},500\n{line}\n"
        for n, line in enumerate(lines, 1)
    ).encode()


def write_mail(blocks: Sequence[Block]) -> bytes:
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "a@example.org", "s"
    half = len(blocks) // 2
    plain = "\n\n".join("\n".join(" | ".join(row) for row in rows) for _, rows in blocks[:half])
    mail.set_content(plain or " ")
    mail.add_alternative(_markup(blocks[:half]), subtype="html")
    mail.add_attachment(write_html(blocks[half:]), maintype="text", subtype="html", filename="rest")
    return mail.as_bytes()


def write_zip(blocks: Sequence[Block]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, block in enumerate(blocks):
            archive.writestr(f"{number:04}.html", write_html([block]))
    return out.getvalue()


WRITERS: dict[str, Callable[[Sequence[Block]], bytes]] = {
    "html": write_html,
    "md": write_markdown,
    "txt": write_markdown,
    "epub": write_epub,
    "docx": write_docx,
    "odt": write_odt,
    "ods": write_ods,
    "xlsx": write_xlsx,
    "pptx": write_pptx,
    "pdf": write_pdf,
    "rtf": write_rtf,
    "csv": write_csv,
    "srt": write_subtitles,
    "eml": write_mail,
    "zip": write_zip,
}
