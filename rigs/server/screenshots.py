"""Make the pictures of docs/server.md: `python -m rigs.server.screenshots` from the root of the
project.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from aveyb_retrieval import build_index
from rigs.server.browser import Browser, Page
from tests.indexes.files import make_pdf
from tests.server.conftest import ROOT, pages_of_this_project, running

QUESTION = "how is damage on the disk found?"
ARABIC = [
    {"_id": f"{file}.md", "title": title, "text": text, "القسم": part, "السنة": year}
    for file, title, text, part, year in (
        (
            "lease",
            "عقد الإيجار",
            (
                "يجب إخطار المالك قبل ثلاثة أشهر من إنهاء عقد الإيجار. انظر section 4 من العقد.\n\n"
                "يكون الإخطار كتابيا، ويسلم باليد أو بالبريد المسجل."
            ),
            "القانون",
            2021,
        ),
        (
            "rent",
            "دفع الإيجار",
            "يدفع الإيجار في أول كل شهر. إذا تأخر الدفع أرسل المالك إنذارا.",
            "القانون",
            2021,
        ),
        (
            "pump",
            "دليل المضخة",
            "أغلق الصمام قبل فتح المرشح، ثم انتظر حتى ينخفض الضغط.",
            "الصيانة",
            2023,
        ),
        (
            "keys",
            "تسليم المفاتيح",
            "عند إنهاء العقد تسلم المفاتيح إلى المالك في يوم الخروج.",
            "القانون",
            2023,
        ),
    )
]
ARABIC_QUESTION = "متى يجب إخطار المالك لإنهاء العقد؟"
MANUAL = """Chapter 3

3.1 Relief valve

The relief valve protects the pump against too high a pressure. It opens
at nine bar and closes again at eight bar. It is tested twice a year: close
the outlet, start the pump, and read the pressure at which water flows back.
A valve that opens late is replaced. Its spring is not set by hand.

3.2 Inlet filter

Close the inlet valve before you open the filter. Wash the sieve in clean
water, look for cracks, and put the seal back as it was. A blocked sieve is
heard: the pump rattles, and the needle of the inlet gauge shakes. Never run
the pump dry for more than 30 seconds, or its seal burns.

3.3 Bearings

The bearings are greased every 500 hours with lithium grease, two strokes
each. Turn the shaft by hand meanwhile. Wipe off what comes out. Bearings
that grow warmer than 80 degrees are changed, both at once, by a fitter who
has the puller. Write the date and the hours into the book of the machine.

3.4 Winter

Below zero the housing bursts if water stays in it. Open the drain, turn the
shaft twice, and leave the drain open until spring. Hang a note on the switch.
"""
COLORS = 96  # of a picture: a third of the bytes, and nobody sees it


def save(page: Page, path: Path) -> None:
    """Write what is seen, with few colors."""
    page.screenshot(path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def main(folder: Path) -> None:
    """Take a search with an open document, in light, in dark, and on a phone; its facets; and one
    in Arabic.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "chromium is not installed (Debian package `chromium`)"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "handbook"
        build_index(pages_of_this_project(), index)
        with running(index) as server, Browser(chromium, Path(scratch) / "profile") as browser:
            page = browser.open()
            for name, dark, phone in (
                ("light", False, False),
                ("dark", True, False),
                ("phone", False, True),
            ):
                page.screen(*((390, 780) if phone else (1360, 850)), dark=dark, phone=phone)
                page.go(f"{server.url}/")
                page.wait("document.getElementById('name').textContent !== 'Search'")
                page.go(f"{server.url}/?query={QUESTION.replace(' ', '+')}")
                page.wait("document.querySelectorAll('#hits > li').length > 0")
                page.click("#hits h2 a")
                page.wait("document.querySelector('#text .current') !== null")
                save(page, folder / f"document-{name}.png")
            page.screen(1360, 850)
            page.go(f"{server.url}/?query={QUESTION.replace(' ', '+')}")
            page.wait("!document.getElementById('facets').hidden")
            save(page, folder / "facets-light.png")
        (Path(scratch) / "manuals").mkdir()
        (Path(scratch) / "manuals" / "pump.pdf").write_bytes(
            make_pdf([MANUAL.splitlines()], sizes={"Chapter 3": 20})
        )
        build_index(Path(scratch) / "manuals", Path(scratch) / "machines")
        with (
            running(Path(scratch) / "machines", "--originals") as server,
            Browser(chromium, Path(scratch) / "third") as browser,
        ):
            page = browser.open()
            for name, phone in (("light", False), ("phone", True)):
                page.screen(*((390, 780) if phone else (1360, 620)), phone=phone)
                page.go(f"{server.url}/?query=when+does+the+relief+valve+open")
                page.wait("document.querySelectorAll('#hits > li').length > 0")
                page.click("#hits h2 a")
                page.wait("!document.getElementById('paper').hidden")
                page.click("#paper button")
                page.wait("!document.getElementById('sheet').hidden")
                save(page, folder / f"printed-{name}.png")
        build_index(ARABIC, Path(scratch) / "العقود")
        with (
            running(Path(scratch) / "العقود") as server,
            Browser(chromium, Path(scratch) / "second") as browser,
        ):
            page = browser.open()
            page.screen(1360, 620)
            page.go(f"{server.url}/?query={quote(ARABIC_QUESTION)}")
            page.wait("!document.getElementById('facets').hidden")
            page.click("#hits h2 a")
            page.wait("document.querySelector('#text .current') !== null")
            save(page, folder / "arabic-light.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
