"""Pictures of text, by themselves and as pages of PDF: read by Tesseract, in the limited process,
on their side and on their head; what is missing for it is named.
"""

from __future__ import annotations

import hashlib
import os
import struct
import textwrap
import zlib
from contextlib import suppress
from dataclasses import replace
from email.message import EmailMessage
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.readers import kinds, pdf, process
from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable, Unrecognized
from aveyb_retrieval.documents.readers.known_words import is_doubtful
from aveyb_retrieval.documents.readers.ocr import read_picture
from aveyb_retrieval.documents.readers.ocr_text import (
    DIVISION,
    PictureText,
    PictureWord,
    picture_text,
)
from aveyb_retrieval.documents.readers.originals import boxes_in_file
from aveyb_retrieval.documents.readers.pdf_scans import RecognizedPage, choose_text
from aveyb_retrieval.documents.readers.suffixes_without_text import PICTURE_SUFFIXES
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Item, Notice, Record, Rejected
from tests.documents.scans import (
    NEEDS_TESSERACT,
    Image,
    drawn,
    pretended_tesseract,
    saved,
    scanned_pdf,
)

if TYPE_CHECKING:
    from pathlib import Path

PATIENT = Reading(ocr_seconds=600)  # on a busy machine
WORDS = "The tenant may leave the house in March"
LETTER = (
    "The tenant shall keep the drainage channel clear and pays a ground rent of 1,150 pounds each"
    " quarter day. Either party may end the lease of the yard by notice of eleven months."
)


def read_one(folder: Path, name: str, data: bytes, **options: object) -> Item:
    """What is read of one file."""
    (folder / name).write_bytes(data)
    (item,) = read_corpus(folder, replace(PATIENT, **options))  # type: ignore[arg-type]
    return item


def words_of(item: Item) -> str:
    """The text of a document that is read, on one line."""
    assert isinstance(item, Record), item
    return " ".join(item.text.split())


def page_texts(record: Item) -> list[str]:
    """The texts of the pages of a document, each on one line."""
    assert isinstance(record, Record) and record.origin and record.origin.pages, record
    starts = [*record.origin.pages.starts, len(record.text)]
    return [" ".join(record.text[start:stop].split()) for start, stop in pairwise(starts)]


@NEEDS_TESSERACT
def test_a_page_of_a_picture_is_read_also_below_a_stamp_and_others_as_before(
    tmp_path: Path,
) -> None:
    small = (1000, 200)
    item = read_one(
        tmp_path,
        "bundle.pdf",
        scanned_pdf(
            (drawn(WORDS, size=small), ["HL-000117"]),
            (None, ["This page holds a text"]),
            (drawn("It snows in the harbour", size=small), []),
        ),
    )
    stamped, typed, scanned = page_texts(item)
    assert WORDS in stamped and stamped.count("HL-000117") == 1
    assert (typed, scanned) == ("This page holds a text", "It snows in the harbour")
    assert isinstance(item, Record)
    assert item.metadata["ocr_pages"] == [1, 3]
    assert all(certainty > 80 for certainty in item.metadata["ocr_certainty"])
    assert "not_read" not in item.metadata


@NEEDS_TESSERACT
def test_pages_on_their_side_and_on_their_head_are_read(tmp_path: Path) -> None:
    pages = [(drawn(LETTER, size=(1240, 320), turn=turn), []) for turn in (90, 180, 270)]
    for text in page_texts(read_one(tmp_path, "a.pdf", scanned_pdf(*pages))):
        assert text == LETTER


@NEEDS_TESSERACT
def test_boxes_of_a_scanned_page_are_those_of_its_words_however_it_lies(tmp_path: Path) -> None:
    pages = [(drawn(WORDS, size=(1000, 200), turn=turn), ["HL-17"]) for turn in (0, 90)]
    item = read_one(tmp_path, "scan.pdf", scanned_pdf(*pages))
    assert isinstance(item, Record)
    starts = (item.text.index("tenant"), item.text.rindex("tenant"))
    for start, across in zip(starts, (True, False), strict=True):
        (box,) = boxes_in_file("scan.pdf", item.text, (start, start + 6), item.origin)
        width, height = box.right - box.left, box.top - box.bottom
        assert (width > 2 * height) == across
        assert 30 < max(width, height) < 60


@NEEDS_TESSERACT
def test_pictures_are_documents_and_pages_of_a_tiff_are_pages(tmp_path: Path) -> None:
    fax = drawn("A fax of the harbour office", size=(1000, 200)).convert("1", dither=0)
    second = drawn("The bolts are of zirconium steel", size=(1000, 200))
    pages = page_texts(read_one(tmp_path, "fax.TIF", saved(fax, "TIFF", second)))
    assert pages == ["A fax of the harbour office", "The bolts are of zirconium steel"]
    (tmp_path / "fax.TIF").unlink()
    clear = Image.new("RGBA", (600, 200), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), mask=drawn(WORDS, size=(600, 200), height=20).point(_is_ink))
    item = read_one(tmp_path, "notice.png", saved(clear, "PNG"))
    assert words_of(item) == WORDS
    assert isinstance(item, Record)
    assert (item.title, item.metadata["type"]) == ("notice", "picture")


def _is_ink(shade: int) -> int:
    return 255 - shade if shade < 250 else 0


@NEEDS_TESSERACT
def test_small_pictures_and_those_without_words_are_summed_up(tmp_path: Path) -> None:
    small = drawn(WORDS, size=(390, 390), height=12)
    noise = Image.effect_noise((500, 400), 60)
    blank = Image.new("RGB", (500, 400), "white")
    for name, picture in (("a", small), ("b", noise), ("c", blank)):
        (tmp_path / f"{name}.png").write_bytes(saved(picture, "PNG"))
    items = list(read_corpus(tmp_path, PATIENT))
    assert [isinstance(item, Notice) and item.harmless for item in items] == [True] * 3
    assert [item.reason for item in items if isinstance(item, Notice)] == [
        "a small picture, not read",
        "a picture without words",
        "a picture without words",
    ]


def test_logos_of_mails_are_not_told_and_pictures_that_hold_words_may_be(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "a@example.org", "Plans"
    mail.set_content("See the plans.")
    logo = saved(drawn("Ltd", size=(300, 90)), "PNG")
    for name, data in (("logo.gif", b"GIF89a"), ("logo.png", logo), ("cut.jpg", bytes(5000))):
        mail.add_attachment(data, maintype="image", subtype="x", filename=name)
    (tmp_path / "a.eml").write_bytes(mail.as_bytes())
    notice, record = read_corpus(tmp_path)
    assert isinstance(notice, Notice) and notice.is_loss and "logo" not in notice.reason
    assert notice.reason.startswith("1 file in it left out: cut.jpg: damaged")
    assert isinstance(record, Record) and "See the plans." in record.text


def test_without_the_program_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    picture = drawn(WORDS)
    (tmp_path / "a.jpg").write_bytes(saved(picture, "JPEG"))
    (tmp_path / "b.pdf").write_bytes(scanned_pdf((picture, []), (None, ["A text"])))
    picture_item, notice, record = read_corpus(tmp_path)
    needed = "OCR needs tesseract and its data, Debian: tesseract-ocr"
    assert isinstance(picture_item, Rejected) and picture_item.reason == needed
    assert isinstance(notice, Notice) and notice.is_loss
    assert notice.reason == f"1 of 2 pages are pictures that are not read ({needed}): 1"
    assert isinstance(record, Record) and record.metadata["not_read"] == notice.reason


@NEEDS_TESSERACT
def test_languages_that_are_not_installed_are_named(tmp_path: Path) -> None:
    item = read_one(tmp_path, "a.png", saved(drawn(WORDS), "PNG"), ocr_languages="eng+tlh")
    assert isinstance(item, Rejected)
    assert item.reason == "tesseract has no data of 'tlh' (--ocr-languages, ocr_languages)"


def png_of(width: int, height: int) -> bytes:
    """A PNG that says that it is so large, and holds one row."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        size, check = (struct.pack(">I", number) for number in (len(data), zlib.crc32(kind + data)))
        return size + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    row = zlib.compress(bytes(width + 1))
    body = chunk(b"IHDR", head) + chunk(b"IDAT", row) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_pictures_that_are_made_to_harm_cost_one_line_each(tmp_path: Path) -> None:
    whole = saved(drawn(WORDS), "JPEG")
    files = {
        "huge.png": png_of(40_000, 40_000),
        "bomb.tif": many_pages(400),
        "cut.jpg": whole[: len(whole) // 3],
        "text.jpg": b"no picture at all",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "note.txt").write_text("The rent is due in May.")
    items = list(read_corpus(tmp_path))
    reasons = {
        item.location.source.rpartition("/")[2]: item.reason
        for item in items
        if isinstance(item, Rejected)
    }
    assert set(reasons) == set(files)
    assert reasons["huge.png"].startswith("too large a picture (Image size (1600000000 pixels)")
    assert reasons["bomb.tif"].startswith("400 pages in ")
    assert reasons["cut.jpg"].startswith("damaged (")
    assert reasons["text.jpg"] == "damaged, or not a picture of its kind"
    assert [item.id for item in items if isinstance(item, Record)] == ["note.txt"]


def many_pages(count: int) -> bytes:
    """A TIFF of so many pages, all of which are the same strip of a picture."""
    size = 8 + 1
    entries = ((256, 4, 4000), (257, 4, 4000), (258, 3, 1), (259, 3, 5), (262, 3, 1))
    strips = ((273, 4, 8), (277, 3, 1), (278, 4, 4000), (279, 4, 1))
    tags = sorted((*entries, *strips))
    length = 2 + 12 * len(tags) + 4
    out = struct.pack("<2sHI", b"II", 42, size) + b"\x80"
    for number in range(count):
        out += struct.pack("<H", len(tags))
        out += b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
        following = size + length * (number + 1) if number + 1 < count else 0
        out += struct.pack("<I", following)
    return out


WRITTEN_TABLE = """
def written(row):
    names = "conf block_num par_num line_num left top width height text level page_num word_num"
    with open(sys.argv[2] + ".tsv", "w") as table:
        for line in (names, row + " words 5 1 1"): table.write(line.replace(" ", "\\t") + "\\n")
"""


@NEEDS_TESSERACT
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("time.sleep(60)", "took more than 2 s (--ocr-seconds)"),
        ("os.kill(os.getpid(), 11)", "tesseract failed: -11"),
        ("sys.stderr.write('no memory\\n'); sys.exit(3)", "tesseract failed: no memory"),
        ("pass", "tesseract cannot be run ("),
        ("written('96 1 1 1 wide 20 30 10')", "tesseract gave no table of words ("),
        ("written('nan 1 1 1 10 20 30 10')", "tesseract gave no table of words ("),
        (
            "open(sys.argv[2] + '.tsv', 'wb').write(bytes([255] * 99))",
            "tesseract gave no table of words (",
        ),
    ],
)
def test_a_tesseract_that_hangs_or_crashes_costs_its_pages(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", pretended_tesseract(tmp_path / "bin", WRITTEN_TABLE + script))
    folder = tmp_path / "docs"
    folder.mkdir()
    picture = drawn(WORDS)
    (folder / "a.png").write_bytes(saved(picture, "PNG"))
    (folder / "b.pdf").write_bytes(scanned_pdf((None, ["A text"]), (picture, [])))
    seconds = 2 if "sleep" in script else 600
    first, notice, record = read_corpus(folder, Reading(ocr_seconds=seconds))
    assert isinstance(first, Rejected) and first.reason.startswith(reason)
    assert isinstance(notice, Notice) and f"not read ({reason}" in notice.reason
    assert words_of(record) == "A text"


@NEEDS_TESSERACT
@pytest.mark.parametrize("script", ["real()", "time.sleep(60)", "os.kill(os.getpid(), 11)"])
def test_scans_of_which_nothing_is_read_take_no_time_from_other_files(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", pretended_tesseract(tmp_path / "bin", script))
    monkeypatch.setattr(process, "LOST_SECONDS", 0.01)
    path = tmp_path / "a.pdf"
    path.write_bytes(scanned_pdf((Image.effect_noise((600, 300), 60), [])))
    kind = kinds.kind_of(path)
    assert kind is not None
    seconds = 1 if "sleep" in script else 600
    with process.FileReader(Limits(1 << 30, ocr_seconds=seconds), seconds=300) as reader:
        for _ in range(2):
            with suppress(Unreadable):
                reader.read(path, kind)
            assert reader._allowed == 300


@NEEDS_TESSERACT
def test_a_tesseract_that_does_not_answer_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aveyb_retrieval.documents.readers.ocr._ANSWER_SECONDS", 1)
    from aveyb_retrieval.documents.readers.ocr import installed_languages

    (tmp_path / "tesseract").write_text("#!/bin/sh\nsleep 30\n")
    (tmp_path / "tesseract").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert installed_languages() == []


def test_a_tesseract_that_hangs_is_asked_for_its_languages_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aveyb_retrieval.documents.readers.ocr._ANSWER_SECONDS", 1)
    (tmp_path / "tesseract").write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked\nsleep 30\n")
    (tmp_path / "tesseract").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for _ in range(3):
        with pytest.raises(Unrecognized, match="OCR needs tesseract"):
            read_picture(drawn(WORDS), Limits())
    assert (tmp_path / "asked").read_text() == "x\n"


@NEEDS_TESSERACT
def test_pictures_are_watched_while_they_are_read(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    page = drawn(WORDS, size=(1000, 200))
    (tmp_path / "a.png").write_bytes(saved(page, "PNG"))
    (tmp_path / "b.pdf").write_bytes(scanned_pdf((page, []), (page, [])))
    assert len(list(read_corpus(tmp_path, PATIENT, lambda *counts: seen.append(counts)))) == 2
    assert seen[0] == (0, 1) and seen[-1] == (3, 3)
    assert seen == sorted(seen)


BAD_LAYERS = [
    "Tlie tcnanl sliall kccp lhe clrainagc channcl clcar ancl pays a grouncl rcnl of l,l5O pouncls"
    " cach quarlcr clay. Eilhcr parly may cnd lhc lcasc of lhc yarcl by nolicc of clcvcn monlhs.",
    "Tbe con7ractor sball cornplete tbe w0rks witbin tbirty weeks frorn tbe date of cornmencernent,"
    " and sball rnaintain tbe roads wbich lead to tbe barbour.",
    "7KH WHQDQW VKDOO NHHS WKH GUDLQDJH FKDQQHO FOHDU DQG SDBV D JURXQG UHQW RI SRXQGV HDFK",
    "1'hc tc,nant sh:tll k(:cp th(' dr:tinagc ch:inncl c1c.ir :tnd p:iys :t ground rcnt c:tch d:ty",
]
GOOD_LAYERS = [
    LETTER,
    "Der Mieter hält den Entwässerungsgraben frei und zahlt vierteljährlich einen Pachtzins. Jede"
    " Partei kann den Vertrag über den Hof mit einer Frist von elf Monaten schriftlich kündigen.",
    "Le locataire garde le canal propre et paie une rente de 1 150 livres à chaque trimestre.",
]


def test_a_text_of_no_words_is_told_from_one_of_words_in_several_languages() -> None:
    assert [is_doubtful(text) for text in BAD_LAYERS] == [True] * len(BAD_LAYERS)
    assert [is_doubtful(text) for text in GOOD_LAYERS] == [False] * len(GOOD_LAYERS)
    assert not is_doubtful("")


def test_of_a_text_layer_and_ocr_the_one_with_words_is_taken() -> None:
    longer = " ".join([BAD_LAYERS[0], BAD_LAYERS[1]])
    assert choose_text(longer, PictureText(LETTER, 93.0, [])).text == LETTER
    finnish = (
        "Vuokralainen pitää kuivatusojan puhtaana ja maksaa maavuokran. Kumpikin osapuoli voi"
        " irtisanoa vuokrasopimuksen kirjallisesti yhdentoista kuukauden ajalla."
    )
    # by data of another language
    misread = finnish.replace("ä", "a").replace("k", "lc")
    for text, found in (
        (" ".join([finnish] * 3), " ".join([misread] * 3)),
        (longer, ""),
        (" ".join([finnish] * 3), " ".join([finnish] * 3)),
    ):
        page = choose_text(text, PictureText(found, 55.0, []))
        assert (page.text, page.certainty, page.reason) == (text, None, "")
    failed = choose_text("HL-17", Unrecognized("no time"))
    assert (failed.text, failed.reason) == ("HL-17", "no time")


@NEEDS_TESSERACT
def test_a_bad_text_layer_is_read_again_and_a_good_one_is_kept(tmp_path: Path) -> None:
    size = (1240, 320)
    bad = [line for text in BAD_LAYERS[:2] for line in text.split(". ")]
    page = (drawn(LETTER, size=size), bad)
    item = read_one(tmp_path, "lease.pdf", scanned_pdf(page, invisible=True))
    assert words_of(item) == LETTER
    good = [*textwrap.wrap(LETTER, 60), *[f"Line {number} of the layer." for number in range(5)]]
    page = (drawn(WORDS, size=size), good)
    item = read_one(tmp_path, "lease.pdf", scanned_pdf(page, invisible=True))
    assert "Line 3 of the layer." in words_of(item)
    assert isinstance(item, Record) and "ocr_pages" not in item.metadata


def words_in_lines(*lines: tuple[str, int, int, int]) -> list[PictureWord]:
    """Words of lines, each with its paragraph, left edge and length in pixels."""
    words = []
    for number, (text, paragraph, left, length) in enumerate(lines):
        parts = text.split()
        for place, word in enumerate(parts):
            begin = left + length * place // len(parts)
            end = left + length * (place + 1) // len(parts)
            box = (begin, 40 * number, end, 40 * number + 30)
            words.append(PictureWord(word, 90.0, (paragraph, 1, 1), box, box))
    return words


def test_sentences_go_over_the_blank_lines_of_ocr() -> None:
    lines = (
        ("The foreman, who had ordered the bolts from", 1, 90, 900),
        ("Larvik, states that each of them must be tight-", 2, 90, 920),
        ("ened to 640 newton metres.", 3, 90, 500),
        ("Crane rail", 4, 90, 200),
        ("The rail was renewed in March", 5, 90, 880),
        ("and painted in", 6, 90, 300),
        ("1. April.", 7, 90, 200),
    )
    assert picture_text(words_in_lines(*lines)).text == (
        "The foreman, who had ordered the bolts from\n"
        f"Larvik, states that each of them must be tight{DIVISION}\n"
        "ened to 640 newton metres.\n\n"
        "Crane rail\n\n"
        "The rail was renewed in March\n"
        "and painted in\n\n"
        "1. April."
    )


def test_signs_that_are_no_words_are_no_text() -> None:
    sign = PictureWord("~|", 91.0, (1, 1, 1), (0, 0, 9, 9), (0, 0, 9, 9))
    guess = PictureWord("eaoe", 31.0, (1, 1, 1), (0, 0, 9, 9), (0, 0, 9, 9))
    assert picture_text([sign, guess]).text == picture_text([]).text == ""
    sure = guess._replace(text="due", certainty=97.0)
    assert picture_text([sign, sure])[:2] == ("~| due", 94.0)


def test_words_of_a_turned_picture_are_where_they_lie() -> None:
    size = (300, 200)
    for turn, box in (
        (0, (10, 20, 40, 30)),
        (90, (20, 160, 30, 190)),
        (180, (260, 170, 290, 180)),
        (270, (270, 10, 280, 40)),
    ):
        word = PictureWord.of_row(("rent", "96", 1, 1, 1, 10, 20, 30, 10), turn, size)
        assert (word.box, word.reading_box) == (box, (10, 20, 40, 30))


@NEEDS_TESSERACT
def test_pictures_of_all_files_in_a_file_are_counted_once(tmp_path: Path) -> None:
    picture = saved(drawn(WORDS, size=(1000, 200)), "PNG")
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "a@example.org", "Plans"
    mail.set_content("See the plans.")
    for name in ("a.png", "b.png", "c.png"):
        mail.add_attachment(picture, maintype="image", subtype="png", filename=name)
    (tmp_path / "a.eml").write_bytes(mail.as_bytes())
    (tmp_path / "b.png").write_bytes(picture)
    seen: list[tuple[int, int]] = []
    list(read_corpus(tmp_path, PATIENT, lambda *counts: seen.append(counts)))
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {1, 2, 3, 4} and seen[-1] == (4, 4)


REPORTED_LANGUAGES = """
if "--list-langs" in sys.argv:
    with open(os.environ["ASKED"], "a") as asked: asked.write("x")
"""


@NEEDS_TESSERACT
def test_languages_are_asked_for_once_and_threads_limited_in_the_reading_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "sys.stderr.write('threads ' + os.environ.get('OMP_THREAD_LIMIT', '')); sys.exit(1)"
    path = pretended_tesseract(tmp_path / "bin", script)
    program = tmp_path / "bin" / "tesseract"
    lines = program.read_text().split("\n", 2)
    program.write_text("\n".join([*lines[:2], REPORTED_LANGUAGES, lines[2]]))
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(saved(drawn(WORDS), "PNG"))
    items = list(read_corpus(folder, PATIENT))
    assert [item.reason for item in items if isinstance(item, Rejected)] == [
        "tesseract failed: threads 1"
    ] * 3
    assert "OMP_THREAD_LIMIT" not in os.environ
    # by the process that reads, and by the one that keeps under which conditions it did
    assert (tmp_path / "asked").read_text() == "xx"


def test_a_picture_that_is_not_read_has_the_hash_of_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    data = saved(drawn(WORDS), "PNG")
    monkeypatch.setattr("aveyb_retrieval.documents.folders.hash_file", None)  # read once
    item = read_one(tmp_path, "a.png", data)
    assert isinstance(item, Rejected) and item.ocr_try is not None
    assert item.ocr_try.sha256 == hashlib.sha256(data).hexdigest()


def test_a_page_of_which_no_word_is_certain_is_one_that_ocr_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsure = {0: RecognizedPage("rent", 0.0), 1: RecognizedPage("as it was", None)}
    monkeypatch.setattr(pdf, "recognize_pages", lambda *_: unsure)
    picture = drawn(WORDS)
    data = scanned_pdf((picture, []), (picture, []))
    assert pdf.read_pdf(data, Limits()).metadata["ocr_pages"] == [1]


def test_pictures_of_every_suffix_are_passed_over_in_a_mail_without_ocr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "missing_package", lambda _kind: ("pytesseract", "ocr"))
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "a@example.org", "Plans"
    mail.set_content("See the plans.")
    for suffix in PICTURE_SUFFIXES:
        mail.add_attachment(bytes(300), maintype="image", subtype="x", filename=f"a{suffix}")
    path = tmp_path / "a.eml"
    path.write_bytes(mail.as_bytes())
    assert not kinds.read_file(path, kinds.FileKind("mail", ""), Limits())[0].warning
