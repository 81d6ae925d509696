"""Make a folder of 300 files of fifteen kinds with the tools that people make them with: see
files.py.

Sources are HTML pages of Debian packages. pandoc turns each into Markdown, and that into DOCX, ODT,
RTF, EPUB, PPTX, notebooks, HTML and reStructuredText. LibreOffice turns documents of pandoc's into
PDF, DOCX, ODT and RTF, and tables of the package list into XLSX, XLS and ODS. git makes messages of
patches and ZIP archives. Other files are PDF, HTML and source code as packages hold them. Beside
`files/`, `truth/` has the text of each file where it is known.
"""

from __future__ import annotations

import csv
import email.message
import email.policy
import gzip
import random
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = {
    "pdf": 15,
    "pdf-office": 20,
    "html": 20,
    "html-pandoc": 20,
    "docx": 15,
    "docx-office": 15,
    "odt": 10,
    "odt-office": 10,
    "rtf": 10,
    "rtf-office": 10,
    "pptx": 20,
    "xlsx": 10,
    "xls": 10,
    "ods": 10,
    "epub": 15,
    "markdown": 15,
    "text": 15,
    "mail": 10,
    "mail-attachments": 10,
    "notebook": 10,
    "subtitles": 10,
    "code": 15,
    "zip": 5,
}
SOURCES = (
    "debian-handbook/html/en-US",
    "debian-policy",
    "developers-reference",
    "git/html",
    "debian/FAQ",
    "maint-guide",
)
FOREIGN = re.compile(r"\.(ca|cs|de|es|fr|it|ja|nl|pt|ru|zh[-_a-z]*)\.html$")
PICTURE = re.compile(r"!\[[^]]*\]\([^)]*\)")
CODE = (".py", ".js", ".c", ".h", ".sh", ".pl", ".R")
ROWS = 120  # of a table


class Folder:
    """The folder of files, the texts they hold, and a place for what lies between."""

    def __init__(self, root: Path) -> None:
        self.files, self.truth, self.work = root / "files", root / "truth", root / "work"
        for path in (self.files, self.truth, self.work):
            path.mkdir(parents=True)

    def target(self, kind: str, name: str) -> Path:
        path = self.files / kind / name
        path.parent.mkdir(exist_ok=True)
        return path

    def tell(self, path: Path, text: str) -> None:
        """Note the text that a file holds."""
        truth = self.truth / path.relative_to(self.files).with_name(path.name + ".txt")
        truth.parent.mkdir(exist_ok=True)
        truth.write_text(text, encoding="utf-8")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True, cwd=cwd
    ).stdout


def make(packages: Path, root: Path) -> Folder:
    """Make the folder out of unpacked Debian packages."""
    rng, folder = random.Random(0), Folder(root)
    sources = markdown_sources(packages, folder, rng, 80)
    take_found(packages, folder, rng)
    by_pandoc(folder, sources)
    by_libreoffice(folder, sources)
    tables(folder, rng)
    mails(folder, sources)
    subtitles(folder, sources)
    archives(packages, folder, rng)
    return folder


def markdown_sources(packages: Path, folder: Path, rng: random.Random, count: int) -> list[Path]:
    """Markdown of HTML pages, one file each, with its plain text beside it."""
    pages = [
        page
        for part in SOURCES
        for page in sorted((packages / "usr/share/doc" / part).rglob("*.html"))
    ]
    pages = [
        page
        for page in pages
        if 6_000 < page.stat().st_size < 60_000 and not FOREIGN.search(page.name)
    ]
    found: list[Path] = []
    for page in rng.sample(pages, len(pages)):
        path = folder.work / f"{len(found):03d}.md"
        path.write_text(PICTURE.sub("", run("pandoc", "-f", "html", "-t", "gfm-raw_html", page)))
        text = run("pandoc", "-f", "gfm", "-t", "plain", "--wrap=none", path)
        if 2_000 < len(text) < 40_000:
            path.with_suffix(".txt").write_text(text)
            found.append(path)
        if len(found) == count:
            break
    return found


def take_found(packages: Path, folder: Path, rng: random.Random) -> None:
    """Copy PDF, HTML and source code as packages hold them."""
    for kind, suffixes, smallest, largest in (
        ("pdf", (".pdf", ".pdf.gz"), 20_000, 600_000),
        ("html", (".html",), 4_000, 60_000),
        ("code", CODE, 1_500, 40_000),
    ):
        paths = sorted(
            path
            for path in packages.rglob("*")
            if path.name.endswith(suffixes) and not path.is_symlink()
        )
        paths = [
            p for p in paths if smallest < p.stat().st_size < largest and "/images/" not in str(p)
        ]
        number = 0
        for path in rng.sample(paths, len(paths)):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            target = folder.target(kind, f"{number:02d}-{path.name.removesuffix('.gz')}")
            target.write_bytes(data)
            text = run("pdftotext", target, "-") if kind == "pdf" else data.decode(errors="replace")
            if kind == "pdf" and len(text) < 3_000:  # a picture
                target.unlink()
                continue
            # of a found page, nobody says what is its text and what is the frame around it
            if kind != "html":
                folder.tell(target, text)
            number += 1
            if number == COUNTS[kind]:
                break


def by_pandoc(folder: Path, sources: list[Path]) -> None:
    for kind, to, suffix, start in (
        ("docx", "docx", "docx", 0),
        ("odt", "odt", "odt", 15),
        ("rtf", "rtf", "rtf", 25),
        ("epub", "epub", "epub", 35),
        ("pptx", "pptx", "pptx", 50),
        ("notebook", "ipynb", "ipynb", 70),
        ("html-pandoc", "html", "html", 20),
        ("text", "rst", "rst", 5),
        ("markdown", "gfm", "md", 60),
    ):
        for number in range(COUNTS[kind]):
            source = sources[(start + number) % len(sources)]
            target = folder.target(kind, f"{source.stem}.{suffix}")
            run(
                "pandoc",
                "-f",
                "gfm",
                "-t",
                to,
                "-s",
                "--metadata",
                f"title={source.stem}",
                "-o",
                target,
                source,
            )
            folder.tell(target, source.with_suffix(".txt").read_text())


def by_libreoffice(folder: Path, sources: list[Path]) -> None:
    """Let LibreOffice save pandoc's documents in its own way."""
    for kind, suffix, start in (
        ("pdf-office", "pdf", 0),
        ("docx-office", "docx", 20),
        ("odt-office", "odt", 40),
        ("rtf-office", "rtf", 55),
    ):
        chosen = [sources[(start + number) % len(sources)] for number in range(COUNTS[kind])]
        made = folder.work / kind
        made.mkdir()
        for source in chosen:
            run("pandoc", "-f", "gfm", "-t", "odt", "-o", made / f"{source.stem}.odt", source)
        office(suffix, sorted(made.glob("*.odt")), made / "out")
        for source in chosen:
            target = folder.target(kind, f"{source.stem}.{suffix}")
            shutil.move(made / "out" / target.name, target)
            folder.tell(target, source.with_suffix(".txt").read_text())


def office(suffix: str, paths: list[Path], out: Path) -> None:
    run(
        "soffice",
        f"-env:UserInstallation=file://{out.parent}/profile",
        "--headless",
        "--convert-to",
        suffix,
        "--outdir",
        out,
        *paths,
    )


def tables(folder: Path, rng: random.Random) -> None:
    """Spreadsheets of the package list: name, version, section, size, description."""
    fields = ("Package", "Version", "Section", "Installed-Size", "Description")
    rows = [
        [
            dict(re.findall(r"^([\w-]+): (.*)$", block, re.MULTILINE)).get(field, "")
            for field in fields
        ]
        for block in run("apt-cache", "dumpavail").split("\n\n")
        if block.strip()
    ]
    made = folder.work / "tables"
    made.mkdir()
    for suffix in ("xlsx", "xls", "ods"):
        for number in range(COUNTS[suffix]):
            path = made / f"{suffix}-{number:02d}.csv"
            chosen = rng.sample(rows, ROWS)
            with path.open("w", newline="", encoding="utf-8") as handle:
                csv.writer(handle).writerows([fields, *chosen])
        office(suffix, sorted(made.glob(f"{suffix}-*.csv")), made / "out")
        for path in sorted(made.glob(f"{suffix}-*.csv")):
            target = folder.target(suffix, f"{path.stem}.{suffix}")
            shutil.move(made / "out" / target.name, target)
            with path.open(encoding="utf-8", newline="") as handle:
                folder.tell(target, "\n".join(" ".join(row) for row in csv.reader(handle)))


def mails(folder: Path, sources: list[Path]) -> None:
    """Messages of patches, as git writes them, and messages with a DOCX attached."""
    place = folder.work / "repository"
    place.mkdir()
    person = ("-c", "user.name=A Writer", "-c", "user.email=writer@example.com")
    run("git", "init", "-q", cwd=place)
    for source in sources[: COUNTS["mail"]]:
        (place / source.name).write_text(source.read_text())
        run("git", "add", ".", cwd=place)
        run("git", *person, "commit", "-qm", f"Add chapter {source.stem}", cwd=place)
    run("git", "format-patch", "--root", "-q", "-o", folder.work / "patches", cwd=place)
    for number, path in enumerate(sorted((folder.work / "patches").iterdir())):
        target = folder.target("mail", f"{number:02d}.eml")
        shutil.copyfile(path, target)
        message = email.message_from_bytes(target.read_bytes(), policy=email.policy.default)
        folder.tell(target, f"{message['subject']}\n{message.get_content()}")
    for number, source in enumerate(sources[30 : 30 + COUNTS["mail-attachments"]]):
        letter, attached = sources[number], folder.work / f"attached-{number}.docx"
        run("pandoc", "-f", "gfm", "-t", "docx", "-o", attached, source)
        message = email.message.EmailMessage()
        message["Subject"], message["From"], message["To"] = (
            f"Chapter {number}",
            "writer@example.com",
            "reader@example.com",
        )
        message["Date"] = "Mon, 02 Mar 2026 09:00:00 +0000"
        message.set_content(letter.with_suffix(".txt").read_text())
        message.add_alternative(run("pandoc", "-f", "gfm", "-t", "html", letter), subtype="html")
        office_type = "vnd.openxmlformats-officedocument.wordprocessingml.document"
        message.add_attachment(
            attached.read_bytes(),
            maintype="application",
            subtype=office_type,
            filename=f"chapter-{number}.docx",
        )
        target = folder.target("mail-attachments", f"{number:02d}.eml")
        target.write_bytes(bytes(message))
        texts = (
            message["Subject"],
            letter.with_suffix(".txt").read_text(),
            source.with_suffix(".txt").read_text(),
        )
        folder.tell(target, "\n".join(texts))


def subtitles(folder: Path, sources: list[Path]) -> None:
    """Sentences of a page as a transcript, four seconds each."""
    for number, source in enumerate(sources[-COUNTS["subtitles"] :]):
        lines = [
            line.strip()
            for line in source.with_suffix(".txt").read_text().splitlines()
            if line.strip()
        ]
        suffix, mark = ("srt", ",") if number % 2 else ("vtt", ".")
        cues = []
        for place, line in enumerate(lines):
            begin, end = (
                f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}{mark}000"
                for s in (4 * place, 4 * place + 4)
            )
            cues.append(f"{place + 1}\n{begin} --> {end}\n{line.replace('-->', '->')}\n")
        target = folder.target("subtitles", f"{source.stem}.{suffix}")
        target.write_text(("WEBVTT\n\n" if suffix == "vtt" else "") + "\n".join(cues))
        folder.tell(target, "\n".join(lines))


def archives(packages: Path, folder: Path, rng: random.Random) -> None:
    """Folders of source code, as `git archive` packs them."""
    places = sorted({path.parent for path in packages.rglob("*.py")})
    places = [place for place in places if 4 <= len(list(place.glob("*.py"))) <= 20]
    for number, place in enumerate(rng.sample(places, COUNTS["zip"])):
        work = folder.work / f"archive-{number}"
        work.mkdir()
        texts = []
        for path in sorted(place.glob("*.py")):
            if path.is_file() and path.stat().st_size < 60_000:
                shutil.copyfile(path, work / path.name)
                texts.append(path.read_text(errors="replace"))
        run("git", "init", "-q", cwd=work)
        run("git", "add", ".", cwd=work)
        tree = run("git", "write-tree", cwd=work).strip()
        target = folder.target("zip", f"{place.name}-{number}.zip")
        run("git", "archive", "--format=zip", "-o", target, tree, cwd=work)
        folder.tell(target, "\n".join(texts))
