"""Page headers and footers, which stand on many pages and are text of one."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from aveyb_retrieval.documents.readers.pdf_headings import Sizes, letters_of, type_of

_EDGE = 2  # lines of a page header or footer
_PAGE = (
    r"(?:(?P<apart>(?<!\w)(?:page|seite|p|s|pág|pag|página|pagina|sida|side|strona|strana|стр|страница)(?!\w)\.?\s*|第\s*"
    r"|[|·•–—-]\s+)|(?<![\w.,/-]))(?P<number>\d+)(?:\s*(?:of|von|de|di|van|av|из|/)\s*(?P<total>\d+))?\s*页?"  # noqa: RUF001
)  # and what sets it apart from a part's
_PAGE_NUMBER = re.compile(
    rf"^[^\w§№#]*?{_PAGE}(?=\s|$)|{_PAGE.replace('?P<', '?P<last_')}\W*$", re.IGNORECASE
)
_MARGIN = 0.15  # of a page's height, in which headers and footers stand


class PageText(NamedTuple):
    """What one page holds: text, forms and notes, whether it is a picture without text; of lines
    sizes and heights.
    """

    text: str
    beside: list[str]
    is_picture: bool
    sizes: Sizes
    heights: Sizes  # at which lines stand, as a share of the page's


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
        letters, found = letters_of(line), _PAGE_NUMBER.search(line)
        titles = [title for _, title in bookmarks.get(number - 1, [])]
        named = pages[number - 1].sizes.get(letters, 0) >= large or any(
            map(letters.endswith, titles)
        )
        if found is None or named:
            return letters
        at = "" if found["number"] else "last_"
        rest = line[: found.start()] + line[found.end() :]
        own = {found[f"{at}number"], found[f"{at}total"]} <= {str(number), str(len(pages)), None}
        of_part = len(re.findall(r"[^\W\d]+|[§№#]", rest)) == 1 and not (
            found[f"{at}apart"] or found[f"{at}total"]
        )
        return letters_of(rest) if own and not of_part else letters

    lines = [page.text.strip().split("\n") for page in pages]
    edges = [
        {i: shape(page[i], n) for i in _edge_of(page, pages[n - 1])}
        for n, page in enumerate(lines, start=1)
    ]
    counts = Counter(each for edge in edges for each in {*edge.values()})
    running = {each for each, count in counts.items() if count >= max(3, len(pages) / 3)}
    kept, seen = [], set[str]()
    for page, inside, edge in zip(pages, lines, edges, strict=True):
        again = (
            running & seen if len(inside) > 2 * _EDGE else set[str]()
        )  # a page of few lines may hold nothing else
        kept.append(
            page._replace(
                text="\n".join(line for i, line in enumerate(inside) if edge.get(i) not in again)
            )
        )
        seen.update(edge.values())
    return kept


def _edge_of(lines: list[str], page: PageText) -> set[int]:
    """Which lines may be a header or footer: the highest and the lowest ones, where they stand in a
    page's margin.
    """
    places = sorted(
        (height, i)
        for i, line in enumerate(lines)
        if (height := page.heights.get(letters_of(line)))
    )
    low = {i for height, i in places[:_EDGE] if height < _MARGIN}
    return low | {i for height, i in places[-_EDGE:] if height > 1 - _MARGIN}
