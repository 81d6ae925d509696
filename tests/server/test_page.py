"""The page in a real browser: search, read, turn pages, filter; keyboard and phone; nothing foreign
is loaded.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from aveyb_retrieval import build_index
from rigs.server.browser import Browser
from tests.indexes.files import make_pdf
from tests.server.conftest import pages_of_this_project, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (Debian package `chromium`)"
)

AXE = "4.14.1"
QUESTION = "how do I replace an index while readers use it?"
HITS = "document.querySelectorAll('#hits > li').length"
OPENED = "document.querySelector('#text .passage.current') !== null"
COUNTED = "!document.getElementById('facets').hidden"
# where the current passage is in the window of the text, from 0 (its top) to 1
SEEN = """(() => {
  const box = document.getElementById("text").getBoundingClientRect();
  const passage = document.querySelector("#text .current").getClientRects()[0];
  return (passage.top - box.top) / box.height;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(CHROMIUM, tmp_path_factory.mktemp("chromium")) as started:
        yield started


@contextmanager
def opened_page(browser):
    opened = browser.open()
    opened.screen(1280, 800)
    yield opened
    assert opened.console == []


@pytest.fixture
def page(browser, server):
    with opened_page(browser) as opened:
        yield opened
    assert [url for url in opened.requests if not url.startswith(server.url)] == []


ARABIC = "يجب إخطار المالك قبل ثلاثة أشهر من إنهاء عقد الإيجار. See section 4 of the lease."
MIXED = [
    {
        "_id": "عقد",
        "title": "عقد الإيجار",
        "text": f"{ARABIC}\n\nThe second paragraph is English.\n\n{ARABIC}",
        "url": "https://example.org/lease?a=1",
        "bad": "javascript:window.pwned=1",
        "tags": ["rent", "notice"],
        "year": 2021,
    },
    {
        "_id": "pump",
        "title": "Pump",
        "text": "Close the valve before opening the filter.",
        "tags": ["pump"],
    },
]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script><b>bold</b> \U0001f600 " * 3
MARKED_UP = [
    {
        "_id": f"<i>{i}</i>/../?#%2F",
        "title": f"<script>alert({i})</script>",
        "text": f"{HOSTILE}\n\n# <u>heading</u>\n\nThe valve number {i} is closed. {HOSTILE}",
        "<b>field</b>": "<script>alert(3)</script>",
    }
    for i in range(2)
]
VALVES = [
    {
        "_id": str(number),
        "text": f"The valve number {number} is closed.",
        "path": f"{number}.md",
        "file.type": "pdf" if number % 3 else "docx",
        "tags": ["a", "b"] if number < 5 else ["b"],
        "serial": number,
        "year": 2000 + number // 2,
        "url": f"https://example.org/{number}",
        "one": "same",
    }
    for number in range(24)
]
PUMP = [
    ["The pump is started by hand."],
    ["The relief valve opens at nine bar", "and closes at eight bar."],
]


@pytest.fixture(scope="module")
def small_indexes(tmp_path_factory):
    """A folder of files, and small indexes: of these files, and of other documents than
    real ones.
    """
    folder = tmp_path_factory.mktemp("small")
    (folder / "handbook" / "law").mkdir(parents=True)
    (folder / "handbook" / "law" / "lease.md").write_text(
        "# Lease\n\nThe tenant may end it with three months' notice.\n"
    )
    (folder / "handbook" / "m.pdf").write_bytes(make_pdf(PUMP))
    corpora = {"mixed": MIXED, "marked": MARKED_UP, "valves": VALVES, "files": folder / "handbook"}
    for name, corpus in corpora.items():
        build_index(corpus, folder / name)
    return folder


@pytest.fixture(scope="module")
def small(small_indexes):
    """A server of these indexes, of which `mixed` is the first."""
    names = [("mixed", "mixed"), ("<b>x", "marked"), ("valves", "valves"), ("files", "files")]
    with running(
        *(f"{name}={small_indexes / path}" for name, path in names), "--originals"
    ) as started:
        yield started


@pytest.fixture
def small_page(browser, small):
    with opened_page(browser) as opened:
        yield opened


def search(page, url, query=QUESTION):
    page.go(f"{url}/")
    page.wait(
        "document.activeElement.id === 'query' && document.getElementById('name').textContent !=="
        " 'Search'"
    )
    page.type(query)
    page.press("Enter")
    page.wait(f"{HITS} === 10 && {COUNTED}")  # on a phone, facets push the hits down
    assert page.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_search_open_a_hit_turn_the_page_filter(page, server):
    search(page, server.url)
    assert page.run("document.querySelectorAll('#hits mark:not(.sentence)').length") > 5
    assert page.run("document.querySelectorAll('#hits mark.sentence').length") > 5
    assert "query=how" in page.run("location.search")
    first = page.run("document.querySelector('#hits h2').textContent")

    page.click("#hits h2 a")
    page.wait(OPENED)
    assert page.run("document.getElementById('reader-title').textContent") == first
    assert 0 < page.run(SEEN) < 0.6
    assert page.run("document.querySelectorAll('#text .current mark.sentence mark').length") > 0
    passage = page.run("document.querySelector('#text .current').textContent")
    span_start = int(page.run("new URLSearchParams(location.search).get('at')"))
    assert passage.split()[0] in page.run("document.getElementById('text').textContent")
    assert span_start >= 0
    page.click("#close")
    page.wait("document.getElementById('reader').hidden")

    page.click("#next")
    page.wait("document.getElementById('page-number').textContent === 'Page 2'")
    assert page.run("document.getElementById('hits').start") == 11
    # the question finds all documents
    assert page.run(HITS) == min(len(pages_of_this_project()) - 10, 10)
    assert page.run("document.getElementById('next').disabled") is (
        len(pages_of_this_project()) <= 20
    )
    page.run("history.back()")
    page.wait("document.getElementById('page-number').textContent === 'Page 1'")
    assert page.run("document.querySelector('#hits h2').textContent") == first

    page.wait("!document.getElementById('facets').hidden")
    page.click("#add-filter")
    page.type("folder")
    page.run("document.getElementById('filter-value').focus()")
    page.type("docs")
    page.press("Enter")
    page.wait("document.querySelectorAll('#filters button').length === 1")
    only = (
        "[...document.querySelectorAll('#hits > li')].every((hit) =>"
        " hit.dataset.id.startsWith('docs/'))"
    )
    page.wait(f"{HITS} > 0 && {only}")
    assert json.loads(page.run("new URLSearchParams(location.search).get('filter')")) == {
        "folder": "docs"
    }
    page.click("#filters button")
    page.wait(f"!({only})")


# searches wait for `release()`
HOLD = """(() => {
  const real = window.fetch;
  const held = new Promise((resolve) => { window.release = resolve; });
  window.fetch = (path, options) => path === "search" ? held.then(() => real(path, options)) : real(path, options);
})()"""  # noqa: E501


@pytest.mark.parametrize(
    ("steps", "shown", "said"), [(1, 10, "The best documents, 1 to 10,"), (2, 0, "")]
)
def test_back_from_a_search_that_is_not_answered_shows_what_belongs_there(
    page, server, steps, shown, said
):
    search(page, server.url)
    page.run(HOLD)
    page.click("#next")
    page.wait("document.getElementById('summary').textContent === 'Searching…'")
    page.run(f"history.go(-{steps})")
    page.wait("!location.search.includes('offset')")
    page.run("release(); new Promise((resolve) => setTimeout(resolve, 500))")
    page.wait(f"document.getElementById('summary').textContent.startsWith('{said}')", 10)
    assert (page.run(HITS), page.run("document.getElementById('hits').start")) == (shown, 1)


def test_everything_works_from_a_keyboard(page, server):
    search(page, server.url)
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert page.run("document.activeElement === document.querySelectorAll('#hits h2 a')[1]")
    page.press("Enter")
    page.wait(OPENED)
    assert page.run("document.activeElement.id") == "reader-title"
    page.press("Escape")
    page.wait("document.getElementById('reader').hidden")
    assert page.run("document.activeElement === document.querySelectorAll('#hits h2 a')[1]")
    page.press("/")
    assert page.run("document.activeElement.id") == "query"


def test_passages_modes_and_an_address_that_was_sent(page, server):
    page.go(f"{server.url}/?query=crash+safety&unit=passage&mode=dense")
    page.wait(f"{HITS} === 10")
    assert page.run("document.querySelector('[name=unit]:checked').value") == "passage"
    page.click("#hits li:nth-child(2) h2 a")
    page.wait(OPENED)
    sent = page.run("location.href")
    text = page.run("document.querySelector('#text .current').textContent")
    page.go(sent)
    page.wait(OPENED)
    assert page.run("document.querySelector('#text .current').textContent") == text


def test_errors_of_the_server_are_shown_in_its_words(page, server):
    page.go(f"{server.url}/?query=a&filter=%7B%22year%22%3A%7B%22%24near%22%3A1%7D%7D")
    page.wait("!document.getElementById('problem').hidden")
    assert "$near" in page.run("document.getElementById('problem').textContent")
    assert [line for line in page.console if "422" not in line] == []
    page.console.clear()  # Chromium reports every answer of 422 there
    page.go(f"{server.url}/?query=a&filter=nothing")
    page.wait("document.getElementById('problem').textContent.includes('not a JSON object')")


def test_on_a_phone_the_document_covers_the_hits_and_nothing_sticks_out(page, server):
    page.screen(390, 780, phone=True)
    search(page, server.url)
    narrow = "document.documentElement.scrollWidth <= 390"
    assert page.run(narrow)
    page.click("#hits h2 a")
    page.wait(OPENED)
    box = page.run(
        "(({x, y, width, height}) => [x, y, width,"
        " height])(document.getElementById('reader').getBoundingClientRect())"
    )
    assert box == [0, 0, 390, 780]
    assert page.run(narrow)


def test_markup_in_documents_stays_text(small_page, small):
    small_page.go(f"{small.url}/?index={quote('<b>x')}&query=valve+number+1+bold+script")
    small_page.wait(f"{HITS} === 2")
    small_page.click("#hits h2 a")
    small_page.wait(OPENED)
    marked = (
        "document.querySelectorAll('main img, main script, main b, main i, main u, header"
        " b').length"
    )
    assert small_page.run(marked) == 0
    shown = small_page.run("document.getElementById('text').textContent")
    # signs of Markdown are not shown
    texts = [document["text"].replace("# <u>", "<u>") for document in MARKED_UP]
    assert "".join(shown.split()) in ["".join(text.split()) for text in texts]
    small_page.click("#hits .chips button")
    small_page.wait("document.querySelectorAll('#filters button').length === 1")
    small_page.wait(f"{HITS} === 2")


def test_all_indexes_are_searched_in_one_ranking(browser, handbook, tmp_path):
    note = {
        "_id": "README.md",
        "title": "Replacing",
        "text": f"{QUESTION} Readers keep the version that they opened.",
    }
    build_index([note], tmp_path / "notes")
    with running(f"pages={handbook}", f"notes={tmp_path / 'notes'}") as server:
        page = browser.open()
        page.screen(1280, 800)
        page.go(f"{server.url}/?query={quote(QUESTION)}")
        page.wait(f"{HITS} === 10")
        assert page.run("[...document.getElementById('index').options].map((o) => o.text)") == [
            "pages", "notes", "all indexes",
        ]  # fmt: skip
        page.run(
            "(i => { i.value = '*'; i.dispatchEvent(new Event('change'));"
            " })(document.getElementById('index'))"
        )
        page.wait("document.getElementById('name').textContent === 'All indexes'")
        page.wait("document.querySelector('#hits > li').dataset.of === 'notes'")
        count = len(pages_of_this_project()) + 1
        assert page.run("document.getElementById('size').textContent") == f"{count} documents"
        assert page.run("document.querySelector('#hits .place').textContent").startswith("notes")
        page.click("#hits h2 a")
        page.wait(
            "document.getElementById('text').textContent.includes('the version that they opened')"
        )
        sent = page.run("location.search")
        assert "index=*" in sent and "of=notes" in sent
        page.go(f"{server.url}/?doc=README.md&of=pages&index=*")  # the same id in the other index
        page.wait("document.getElementById('text').textContent.length > 1000")
        assert not page.run(
            "document.getElementById('text').textContent.includes('the version that they opened')"
        )
        assert page.console == []
        page.go("about:blank")


def test_a_key_is_asked_for_once(browser, handbook, tmp_path):
    (tmp_path / "keys").write_text("open-sesame\n")
    with running(handbook, "--api-key-file", tmp_path / "keys") as server:
        page = browser.open()
        page.go(f"{server.url}/?query=index")
        for key in ("wrong", "open-sesame"):
            page.wait("document.getElementById('key-dialog').open")
            page.run("document.getElementById('key').focus()")
            page.type(key)
            page.press("Enter")
            if key == "wrong":
                page.wait("!document.getElementById('key-wrong').hidden")
        page.wait(f"{HITS} === 10")
        assert [line for line in page.console if "401" not in line] == []
        page.go(f"{server.url}/?query=passage")
        page.wait(f"{HITS} === 10")
        page.go("about:blank")


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The script of axe-core, from npm, kept in the user's cache."""
    root = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aveyb-retrieval-tests"
    )
    script = root / f"axe-{AXE}.min.js"
    if not script.is_file():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed; it brings axe-core")
        folder = tmp_path_factory.mktemp("npm")
        command = ["npm", "pack", "--silent", f"axe-core@{AXE}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            pytest.skip(f"axe-core cannot be fetched from npm: {done.stderr.strip()[-200:]}")
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            content = package.extractfile("package/axe.min.js").read()
        root.mkdir(parents=True, exist_ok=True)
        part = script.with_suffix(f".{os.getpid()}")
        part.write_bytes(content)
        part.replace(script)
    return script.read_text(encoding="utf-8")


def violations(page, axe):
    page.run(axe)
    found = page.run(
        "axe.run().then((result) => result.violations.map((v) => [v.impact, v.id, v.nodes.map((n)"
        " => n.html)]))"
    )
    return [violation for violation in found if violation[0] in ("serious", "critical", "moderate")]


@pytest.mark.parametrize(
    ("dark", "phone"),
    [(False, False), (True, False), (False, True)],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_nothing_serious(page, server, axe, dark, phone):
    page.screen(*((390, 780) if phone else (1280, 800)), dark=dark, phone=phone)
    page.go(f"{server.url}/")
    page.wait("document.getElementById('name').textContent !== 'Search'")
    assert violations(page, axe) == []
    search(page, server.url)
    page.click("#add-filter")
    page.wait("!document.getElementById('facets').hidden")
    page.run("document.getElementById('facets').open = true")
    assert violations(page, axe) == []
    page.click("#hits h2 a")
    page.wait(OPENED)
    assert violations(page, axe) == []


# --- other documents: right to left, links, lists, what fits badly -------------------------------


FACETS = """Object.fromEntries([...document.querySelectorAll('.facet')].map((group) => [
  group.querySelector('p').textContent, [...group.querySelectorAll('button')].map((each) => each.innerText.trim())]))"""  # noqa: E501


def test_facets_count_narrow_down_and_are_reached_by_keyboard(small_page, small):
    small_page.screen(1400, 900)
    small_page.go(f"{small.url}/?index=valves&query=which+valve+is+closed")
    small_page.wait(COUNTED)
    facets = small_page.run(FACETS)
    # neither what all have nor what each has alone
    assert list(facets) == ["file.type", "tags", "year"]
    assert [" ".join(each.split()) for each in facets["file.type"]] == [
        "pdf 16 documents",
        "docx 8 documents",
    ]
    assert [" ".join(each.split()) for each in facets["tags"]] == [
        "b 24 documents",
        "a 5 documents",
    ]
    assert len(facets["year"]) == 13 and facets["year"][-1] == "4 more"
    left, right = small_page.run(
        "[document.getElementById('facets').getBoundingClientRect().right,"
        " document.querySelector('#hits h2').getBoundingClientRect().left]"
    )
    assert 0 < left <= right  # beside the hits
    small_page.run("document.querySelector('.facet button').focus()")
    small_page.press("Enter")
    small_page.wait(f"{COUNTED} && document.querySelectorAll('#filters button').length === 1")
    assert json.loads(small_page.run("new URLSearchParams(location.search).get('filter')")) == {
        "file\\.type": "pdf"
    }
    assert small_page.run("document.activeElement.id") == "results"
    small_page.wait(f"({FACETS})['file.type'] === undefined")
    small_page.run(
        "[...document.querySelectorAll('.facet button')].find((b) =>"
        " b.innerText.startsWith('a')).click()"
    )
    small_page.wait(f"{HITS} === 3")  # 1, 2 and 4
    small_page.screen(390, 780, phone=True)
    small_page.go(f"{small.url}/?index=valves&query=which+valve+is+closed")
    small_page.wait(COUNTED)
    assert not small_page.run("document.getElementById('facets').open")
    small_page.click("#facets summary")
    small_page.click(".facet button")
    small_page.wait("document.querySelectorAll('#filters button').length === 1")
    assert small_page.run("document.documentElement.scrollWidth <= 390")


def direction(page, selector):
    return page.run(f"getComputedStyle(document.querySelector({json.dumps(selector)})).direction")


def test_text_runs_in_the_direction_of_its_language(small_page, small):
    small_page.go(
        f"{small.url}/?query=%D8%B9%D9%82%D8%AF+%D8%A7%D9%84%D8%A5%D9%8A%D8%AC%D8%A7%D8%B1"
    )
    small_page.wait(f"{HITS} > 0")
    first = "#hits li[data-id='عقد']"
    assert direction(small_page, "#query") == "rtl"
    assert (
        direction(small_page, f"{first} h2") == direction(small_page, f"{first} .snippet") == "rtl"
    )
    assert direction(small_page, "#hits li[data-id='pump'] h2") == "ltr"
    assert direction(small_page, "body") == "ltr"
    small_page.click(f"{first} h2 a")
    small_page.wait(OPENED)
    assert (
        direction(small_page, "#reader-title") == direction(small_page, "#text .current") == "rtl"
    )


def test_addresses_are_links_and_lists_are_shown(small_page, small):
    small_page.go(f"{small.url}/?query=lease+section")
    small_page.wait(f"{HITS} > 0")
    links = (
        "[...document.querySelectorAll('#hits .chips a')].map((link) => [link.href, link.target,"
        " link.rel])"
    )
    assert small_page.run(links) == [
        ["https://example.org/lease?a=1", "_blank", "noopener noreferrer"]
    ]
    buttons = small_page.run(
        "[...document.querySelectorAll('#hits .chips button')].map((each) => each.textContent)"
    )
    assert {"tags: rent", "tags: notice", "year: 2021", "bad: javascript:window.pwned=1"} <= set(
        buttons
    )
    small_page.run(
        "[...document.querySelectorAll('#hits .chips button')].find((b) => b.textContent === 'tags:"
        " rent').click()"
    )
    small_page.wait(f"{HITS} === 1")
    filtered = json.loads(small_page.run("new URLSearchParams(location.search).get('filter')"))
    assert filtered == {"tags": {"$contains": "rent"}}
    small_page.click("#hits h2 a")
    small_page.wait(OPENED)
    small_page.click("#about summary")
    described = small_page.run("document.getElementById('metadata').innerText")
    assert all(
        words in described for words in ("rent, notice", "2021", "https://example.org/lease?a=1")
    )
    assert small_page.run("document.querySelectorAll('#metadata a').length") == 1


def test_a_link_to_a_document_alone_opens_it_at_its_place(small_page, small, server):
    at = len(ARABIC) + 2
    small_page.go(f"{small.url}/?doc=%D8%B9%D9%82%D8%AF&at={at}")
    small_page.wait(OPENED)
    assert (
        small_page.run("document.querySelector('#text .current').textContent")
        == "The second paragraph is English."
    )
    assert small_page.run("document.getElementById('reader-title').textContent") == "عقد الإيجار"
    small_page.press("Escape")
    small_page.wait("document.getElementById('reader').hidden")
    assert small_page.run("document.activeElement.id") == "query"
    small_page.go(f"{small.url}/?doc=pump")
    small_page.wait("document.getElementById('text').textContent.startsWith('Close the valve')")
    small_page.go(f"{server.url}/?doc=docs/server.md&at=4000")  # far into a long document
    small_page.wait(OPENED)
    assert 0 <= small_page.run(SEEN) < 0.6


def test_it_says_where_nothing_fits(page, server):
    page.go(f"{server.url}/?query=who+won+the+chess+championship")
    page.wait(f"{HITS} > 0")
    assert (
        page.run("document.getElementById('unsure').innerText")
        == "Nothing fits well. These come nearest."
    )
    assert "fits poorly" in page.run("document.querySelector('#hits .place').textContent")
    page.click("#hits h2 a")
    page.wait(OPENED)
    assert not page.run("document.getElementById('unsure').hidden")
    page.go(f"{server.url}/?query=what+does+a+dynamic+layer+compute")
    page.wait(f"{HITS} > 0")
    assert page.run("document.getElementById('unsure').hidden")
    assert "fit" in page.run("document.querySelector('#hits .place').textContent")


@pytest.mark.parametrize(
    "written", ["{}", '{"a":{}}', '{"$and":[null]}', '{"a":null}', '{"$or":[]}']
)
def test_no_filter_in_the_address_breaks_the_page(browser, server, written):
    page = browser.open()
    page.go(f"{server.url}/?query=index&filter={quote(written)}")
    page.wait(
        f"{HITS} > 0 || !document.getElementById('problem').hidden ||"
        " document.getElementById('summary').textContent"
    )
    assert "TypeError" not in page.run("document.body.innerText")
    assert [line for line in page.console if "422" not in line] == []


# --- pages of other origins ----------------------------------------------------------------------


ASKS = """(async () => {
  const said = [];
  const json = { "Content-Type": "application/json" };
  for (const options of [{}, { method: "POST", headers: json, body: '{"query":"index"}' }])
    try {
      said.push((await fetch(options.method ? `${URL}/search` : `${URL}/search?query=index`, options)).status);
    } catch (error) {
      said.push(error.name);
    }
  const blindly = (path, options) => fetch(`${URL}${path}`, { mode: "no-cors", ...options }).catch(() => null);
  await blindly("/search", { method: "POST", body: '{"query":"index"}' });
  await blindly("/v1/embeddings", { method: "POST", body: new Blob(['{"input":"index"}']) });
  await blindly("/search?query=index");
  await new Promise((done) => {
    const frame = Object.assign(document.createElement("iframe"), { name: "target", onload: done });
    document.body.append(frame);
    const form = Object.assign(document.createElement("form"),
      { action: `${URL}/search`, method: "POST", enctype: "text/plain", target: "target" });
    form.append(Object.assign(document.createElement("input"), { name: '{"query":"index","a":"', value: '"}' }));
    document.body.append(form);
    form.submit();
    setTimeout(done, 2000);
  });
  return said;
})()"""  # noqa: E501


def answered(url):
    """How many requests to search and embed were executed."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    return sum(
        map(
            float,
            re.findall(
                r'aveyb_requests_total\{route="(?:search|embed.*)",status="200"\} (\S+)', text
            ),
        )
    )


def test_a_page_of_another_origin_asks_only_with_permission(browser, handbook, server, tmp_path):
    (tmp_path / "index.html").write_text("<!DOCTYPE html><title>elsewhere</title><body></body>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        origin = f"http://localhost:{elsewhere.server_port}"
        try:
            with running(handbook, "--cors-origin", origin) as allowing:
                for asked, said, executed in (
                    (server, ["TypeError"] * 2, 0),
                    (allowing, [200, 200], 2),
                ):
                    page, before = browser.open(), answered(asked.url)
                    page.go(f"{origin}/")
                    assert page.run(ASKS.replace("URL", json.dumps(asked.url))) == said
                    # those that read answers, none blindly
                    assert answered(asked.url) - before == executed
        finally:
            elsewhere.shutdown()


def test_the_original_file_is_kept(browser, small, small_indexes):
    file = small_indexes / "handbook" / "law" / "lease.md"
    page = browser.open()
    page.go(f"{small.url}/?index=files&doc=law/lease.md")
    page.wait("!document.getElementById('original').hidden")
    page.run("""window.kept = null;
        const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => {
          blob.text().then((text) => { window.kept = text; });
          return make(blob);
        };""")
    page.click("#original button")
    page.wait("window.kept !== null")
    assert page.run("window.kept") == file.read_text()
    file.write_text("something else")
    page.click("#original button")
    page.wait("document.getElementById('reader-place').textContent.includes('it has changed')")
    with running(small_indexes / "files") as server:  # without the option there is no button
        page.go(f"{server.url}/?doc=law/lease.md")
        page.wait("document.getElementById('text').textContent.includes('notice')")
        assert page.run("document.getElementById('original').hidden")
        page.go("about:blank")  # asks no more


def test_the_page_of_a_pdf_is_shown_with_the_passage_marked(small_page, small):
    small_page.go(f"{small.url}/?index=files&query=relief+valve")
    small_page.wait("document.querySelectorAll('#hits > li').length > 0")
    small_page.click("#hits h2 a")
    small_page.wait("!document.getElementById('paper').hidden")
    small_page.click("#paper button")
    small_page.wait("!document.getElementById('sheet').hidden")
    assert small_page.run("document.getElementById('text').hidden")
    assert small_page.run(
        "document.querySelector('#sheet canvas').getAttribute('aria-label')"
    ).startswith("Page ")
    seen = """(() => { const c = document.querySelector('#sheet canvas');
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
      for (let i = 0; i < d.length; i += 4) n += d[i] === 255 && d[i + 1] === 230 && d[i + 2] === 130;
      return n; })()"""  # noqa: E501
    assert small_page.run(seen) > 1000
    small_page.click("#paper button")
    small_page.wait("!document.getElementById('text').hidden")
