"""Page headers and footers, which stand on many pages and are text of one."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.documents.readers.pdf_headings import Sizes, letters_of, type_of

if TYPE_CHECKING:
    from aveyb_retrieval.documents.readers.pdf_scans import ScanKind

_EDGE_LINES = 2  # lines of a page header or footer
# and what sets it apart from a part's
_PAGE = (
    r"(?:(?P<apart>(?<!\w)(?:page|seite|p|s|pág|pag|página|pagina|sida|side|strona|strana|стр|страница)(?!\w)\.?\s*|第\s*"
    r"|[|·•–—-]\s+)|(?<![\w.,/-]))(?P<number>\d+)(?:\s*(?:of|von|de|di|van|av|из|/)\s*(?P<total>\d+))?\s*页?"  # noqa: RUF001
)
_PAGE_NUMBER = re.compile(
    rf"^[^\w§№#]*?{_PAGE}(?=\s|$)|{_PAGE.replace('?P<', '?P<last_')}\W*$", re.IGNORECASE
)
_DIVIDED_END = re.compile(r"[^\W\d_][-\u2010\u00ad\x02\ufffe]\s*\Z")
_REST = re.compile(r"\s*(([^\W\d_A-Z])\w*[^\w\s]*)\s*")  # of a word, and the stop behind it
_MARGIN_SHARE = 0.15  # of a page's height, in which headers and footers stand


class PageText(NamedTuple):
    """What one page holds: text, forms and notes, how it is a picture of text; of lines sizes and
    heights; what is set across it.
    """

    text: str
    beside: list[str]
    scan: ScanKind
    sizes: Sizes
    heights: Sizes  # at which lines stand, as a share of the page's
    across: list[str]


def without_watermarks(pages: list[PageText]) -> list[PageText]:
    """Take what is set across pages out of their text, and off all but one that has it.

    It is set at a slant, or is a line in larger type that most pages have, three at least, at one
    height outside of their margins.
    """
    _, large = type_of([page.sizes for page in pages])
    counts = Counter(place for page in pages for place in _large_lines(page, large))
    repeated = {place for place, count in counts.items() if count >= max(3, len(pages) / 2)}
    flows: list[str] = []
    across: list[dict[str, str]] = []  # of each page, by their letters
    for page in pages:
        marks = {letters for letters, _ in _large_lines(page, large) & repeated}
        lines = page.text.split("\n")
        taken = [*page.across, *(line.strip() for line in lines if letters_of(line) in marks)]
        flows.append("\n".join(line for line in lines if letters_of(line) not in marks))
        across.append({letters_of(line): line for line in taken})
    holders: dict[str, int] = {}  # a page of nothing else has it only if all have nothing else
    for number in sorted(range(len(pages)), key=lambda number: not flows[number].strip()):
        for letters in across[number]:
            holders.setdefault(letters, number)
    return [
        page._replace(
            text=flows[number],
            sizes={line: size for line, size in page.sizes.items() if line not in across[number]},
            across=[line for letters, line in across[number].items() if holders[letters] == number],
        )
        for number, page in enumerate(pages)
    ]


def _large_lines(page: PageText, large: float) -> set[tuple[str, int]]:
    """The lines of a page in larger type outside of its margins, with their heights in percent."""
    return {
        (letters, round(100 * height))
        for letters, height in page.heights.items()
        if _MARGIN_SHARE <= height <= 1 - _MARGIN_SHARE and page.sizes.get(letters, 0.0) >= large
    }


def with_whole_words(pages: list[PageText]) -> list[PageText]:
    """Put the rest of a word that the end of a page divides before that end.

    A sign of a divided word stands between its parts, as PDFium sets it at the end of a line.
    """
    texts = [page.text for page in pages]
    for number in range(len(pages) - 1):
        continuation = _REST.match(texts[number + 1])
        if continuation is None or not _DIVIDED_END.search(texts[number]):
            continue
        texts[number] = f"{texts[number].rstrip()[:-1]}\x02{continuation[1]}"
        texts[number + 1] = texts[number + 1][continuation.end() :]
    return [page._replace(text=text) for page, text in zip(pages, texts, strict=True)]


def without_running_lines(
    pages: list[PageText], bookmarks: dict[int, list[tuple[int, str]]]
) -> list[PageText]:
    """Take page headers and footers off all pages but the first that has them.

    They are what at least three pages and a third of all begin or end with. Only the page's own
    number may differ, and that only where it is no part's: of a bookmark, of a line in larger type,
    of "Lot 4".
    """
    _, large = type_of([page.sizes for page in pages])

    def shape(line: str, number: int) -> str:
        letters, number_match = letters_of(line), _PAGE_NUMBER.search(line)
        titles = [title for _, title in bookmarks.get(number - 1, [])]
        named = pages[number - 1].sizes.get(letters, 0) >= large or any(
            map(letters.endswith, titles)
        )
        if number_match is None or named:
            return letters
        at = "" if number_match["number"] else "last_"
        words = line[: number_match.start()] + line[number_match.end() :]
        own = {number_match[f"{at}number"], number_match[f"{at}total"]} <= {
            str(number),
            str(len(pages)),
            None,
        }
        of_part = len(re.findall(r"[^\W\d]+|[§№#]", words)) == 1 and not (
            number_match[f"{at}apart"] or number_match[f"{at}total"]
        )
        return letters_of(words) if own and not of_part else letters

    lines = [page.text.strip().split("\n") for page in pages]
    edges = [
        {i: shape(page[i], n) for i in _edge_of(page, pages[n - 1])}
        for n, page in enumerate(lines, start=1)
    ]
    counts = Counter(form for edge in edges for form in {*edge.values()})
    running = {form for form, count in counts.items() if count >= max(3, len(pages) / 3)}
    cleaned_pages, seen = [], set[str]()
    for page, inside, edge in zip(pages, lines, edges, strict=True):
        # a page of few lines may hold nothing else
        again = running & seen if len(inside) > 2 * _EDGE_LINES else set[str]()
        cleaned_pages.append(
            page._replace(
                text="\n".join(line for i, line in enumerate(inside) if edge.get(i) not in again)
            )
        )
        seen.update(edge.values())
    return cleaned_pages


def _edge_of(lines: list[str], page: PageText) -> set[int]:
    """Which lines may be a header or footer: the highest and the lowest ones, where they stand in a
    page's margin.
    """
    places = sorted(
        (height, i)
        for i, line in enumerate(lines)
        if (height := page.heights.get(letters_of(line)))
    )
    low = {i for height, i in places[:_EDGE_LINES] if height < _MARGIN_SHARE}
    return low | {i for height, i in places[-_EDGE_LINES:] if height > 1 - _MARGIN_SHARE}
