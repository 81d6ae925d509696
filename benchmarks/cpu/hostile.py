"""A polite client of a running server beside one that attacks it, from another address of this
machine.

`serve.py --hostile` runs it: the polite client asks one question after the other, at first alone,
then for each attack. The last one does not ask the server: files that are made to cost much are
indexed on the same machine.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.synchronize import Event

SILENT = 1010
LONG = 8 << 20  # bytes of a query
LONG_CLIENTS = 8
GREEDY_CLIENTS = 64
HOSTILE_FILES = 1000


def silent(host: str, port: int, own: str, stop: Event, seen: Counter[str]) -> None:
    """Keep connections open that never send a byte; what is closed is opened again."""
    poll, sockets = select.poll(), {}
    while not stop.is_set():
        while len(sockets) < SILENT:
            connection = socket.create_connection((host, port), timeout=30, source_address=(own, 0))
            sockets[connection.fileno()] = connection
            poll.register(connection, select.POLLIN)
            seen["opened"] += 1
        for number, _ in poll.poll(200):
            poll.unregister(number)
            sockets.pop(number).close()
            seen["closed by the server"] += 1
    for connection in sockets.values():
        connection.close()


def long_queries(host: str, port: int, own: str, stop: Event, seen: Counter[str]) -> None:
    """Ask with queries of 8 MB from some clients at once."""
    # as large as a body may be
    body = json.dumps({"query": "valve " * ((LONG - 100) // 6)}).encode()
    _post_from(LONG_CLIENTS, host, port, own, body, stop, seen)


def greedy(host: str, port: int, own: str, stop: Event, seen: Counter[str]) -> None:
    """Ask for everything at once that a request may ask for, from many clients."""
    fields = {"query": ["valve"] * 900, "k": 10, "text": True, "passages": 10, "context": 5}
    body = json.dumps({**fields, "candidates": 1000, "rerank": "maxsim"}).encode()
    _post_from(GREEDY_CLIENTS, host, port, own, body, stop, seen)


def _post_from(
    clients: int, host: str, port: int, own: str, body: bytes, stop: Event, seen: Counter[str]
) -> None:
    def ask() -> None:
        while not stop.is_set():
            connection = http.client.HTTPConnection(host, port, timeout=70, source_address=(own, 0))
            try:
                connection.request("POST", "/search", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                seen[str(answer.status)] += 1
            except OSError as error:
                seen[type(error).__name__] += 1
            finally:
                connection.close()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    stop.wait()


def indexing(host: str, port: int, own: str, stop: Event, seen: Counter[str]) -> None:
    """Index a folder of files that cost much time or memory, again and again."""
    with tempfile.TemporaryDirectory() as place:
        folder, index = Path(place) / "files", Path(place) / "index"
        folder.mkdir()
        kinds = write_files(folder)
        for number in range(HOSTILE_FILES - len(kinds)):
            kind = kinds[number % len(kinds)]
            (folder / f"{number:04}{kind.suffix}").hardlink_to(kind)
        command = [
            sys.executable,
            "-m",
            "aveyb_retrieval.cli.index",
            "build",
            str(folder),
            "-o",
            str(index),
        ]
        while not stop.is_set():
            build = subprocess.Popen(
                [*command, "--quiet", "--on-error", "skip", "--overwrite", "--restart"],
                start_new_session=True,
            )
            seen["builds that began"] += 1
            while build.poll() is None and not stop.wait(0.2):
                pass
            seen["builds that ended"] += build.poll() is not None
            if build.poll() is None:
                os.killpg(build.pid, signal.SIGTERM)
            build.wait()
    seen["largest process, MiB"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def write_files(folder: Path) -> list[Path]:
    """Write one file of each kind that costs much."""
    page = "<html><body><p>words of a page</p></body></html>"
    spine = '<itemref idref="c0"/>' * 20_000
    opf = '<package xmlns="http://www.idpf.org/2007/opf"><manifest><item id="c0" href="c0.xhtml" '
    opf += f'media-type="application/xhtml+xml"/></manifest><spine>{spine}</spine></package>'
    container = '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    container += '<rootfile full-path="book.opf"/></rootfiles></container>'
    _zip(
        folder / "spine.epub",
        {"META-INF/container.xml": container, "book.opf": opf, "c0.xhtml": page},
    )
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = "<w:p><w:r><w:t>x</w:t></w:r></w:p>" * 1_500_000
    document = f'<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>'
    _zip(folder / "paragraphs.docx", {"word/document.xml": document})
    (folder / "nested.html").write_text("<div>" * 1_000_000 + "words")
    (folder / "attributes.html").write_text(
        f"<p {' '.join(f'a{i}=1' for i in range(300_000))}>words</p>"
    )
    pages = f"<</Type/Pages/Count 1000000/Kids[{'3 0 R ' * 1_000_000}]>>"
    one = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>"
    (folder / "pages.pdf").write_bytes(_pdf("<</Type/Catalog/Pages 2 0 R>>", pages, one))
    draws = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Resources 5 0 R/Contents 4 0 R>>"
    form = (
        "<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources 5 0 R/Length 15>>stream\n/F Do /F Do"
        " /F Do\nendstream"
    )
    loop = ("<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Count 1/Kids[3 0 R]>>", draws)
    loop += ("<</Length 5>>stream\n/F Do\nendstream", "<</XObject<</F 6 0 R>>>>", form)
    (folder / "forms.pdf").write_bytes(_pdf(*loop))
    names = (
        "spine.epub",
        "paragraphs.docx",
        "nested.html",
        "attributes.html",
        "pages.pdf",
        "forms.pdf",
    )
    return [folder / name for name in names]


def _zip(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def _pdf(*objects: str) -> bytes:
    """Write a PDF of objects numbered from 1, of which the first is its catalog."""
    out, places = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    end = f"trailer\n<</Size {count}/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF"
    return out + f"xref\n0 {count}\n0000000000 65535 f \n{table}{end}".encode()


ATTACKS: dict[str, Callable[[str, int, str, Event, Counter[str]], None]] = {
    f"{SILENT:,} silent connections": silent,
    f"queries of 8 MB, {LONG_CLIENTS} clients": long_queries,
    f"everything at once, {GREEDY_CLIENTS} clients": greedy,
    f"{HOSTILE_FILES:,} hostile files being indexed": indexing,
}


def _attack(name: str, url: str, stop: Event, results: Any) -> None:
    host, port = url.removeprefix("http://").split(":")
    seen: Counter[str] = Counter()
    own = f"127.0.0.{2 + list(ATTACKS).index(name)}"  # the server remembers what an address did
    ATTACKS[name](host, int(port), own, stop, seen)
    results.put(dict(seen))


def under_attack(
    url: str, measure: Callable[[], dict[str, Any]], warm: float = 3.0
) -> Iterator[dict[str, Any]]:
    """Yield what `measure` gives while each attack runs, with the answers that the attacker got."""
    context = multiprocessing.get_context("spawn")
    for name in ATTACKS:
        stop, results = context.Event(), context.Queue()
        attacker = context.Process(target=_attack, args=(name, url, stop, results), daemon=True)
        attacker.start()
        time.sleep(warm)
        measured = measure()
        stop.set()
        yield {"attack": name, **measured, "attacker_got": results.get(timeout=120)}
        attacker.terminate()
        attacker.join()
        time.sleep(warm)  # what it left behind ends
