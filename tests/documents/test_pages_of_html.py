"""HTML and EPUB: nothing visible is dropped, nothing hidden wins, rows stay rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.indexes.files import make_epub

if TYPE_CHECKING:
    from tests.documents.conftest import Read

pytest.importorskip("selectolax")

SHOWN = {
    "<aside><p>unplug it first</p></aside>": "unplug it first",
    "<h2><button>How do I cancel?</button></h2>": "## How do I cancel?",
    "<article><p>a</p><footer>by Ines</footer></article>": "a\n\nby Ines",
    "<dialog open>read this</dialog><dialog>not this</dialog>": "read this",
    "<select><option>red<option selected>blue</select>": "blue",
    "<select><option>red<option>blue</select>": "red",
    "<p>Name <input value='Ines'><input type=hidden value=x></p>": "Name Ines",
    "<p style='font-size: 0px'>no</p><p style='MSO-HIDE:all'>no</p><p style='font-size:0.9em'>yes</p>": (  # noqa: E501
        "yes"
    ),
    "<p style='color: #FFFFFF; background:white !important'>no</p><b style='color:#fff'>yes</b>": (
        "yes"
    ),
    "<p style='color:#fff;background:#000'>yes</p><p style='color:rgb(0, 0, 0);background-color:#000000'>no</p>": (  # noqa: E501
        "yes"
    ),
    "<div style='font-size:0'><span style='font-size:14px'>yes</span></div>": "yes",
    "<div style='font-size:0'><span>no</span></div>yes": "yes",
    "<p style='background:none; color:none'>yes</p><p style='color:inherit;background:inherit'>yes</p>": (  # noqa: E501
        "yes\n\nyes"
    ),
    "<div hidden>no</div><p aria-hidden=true>no</p><p style='color:red; display:none'>no</p>yes": (
        "yes"
    ),
    "<p>within <del>30</del><ins>60</ins> days": "within 60 days",
    "<div>a<nav>menu</nav>b</div>": "a\nb",
    "<svg><title>no</title><text>Boiler</text></svg>": "Boiler",
    "<ruby>A<rt>tou</rt>B<rt>kyou</rt></ruby> ends": "AB(toukyou) ends",
    "<math><mfrac><mn>1</mn><mn>2</mn></mfrac></math>": "1/2",
    "<p>x<math><msup><mi>y</mi><mn>2</mn></msup></math></p>": "xy^2",
    "<table><tr><td><p>Bolt</p><td><p>5</p><tr><td><td>7</table>": "Bolt | 5\n | 7",
    "<table><tr><td rowspan=2>North<td>Bolt<tr><td>Nut</table>": "North | Bolt\nNorth | Nut",
    "<table><tr><td><ul><li>a<li>b</ul><td>5</table>": "a b | 5",
    "<table><tr><td><h2>News</h2><p>text<td>menu</table>": "## News\n\ntext\n\nmenu",
    "<table><tr><td><table><tr><td>a<td>b</table><td>right</table>": "a | b\n\nright",
    "<table role=presentation><tr><td>left<td>right</table>": "left\n\nright",
    "<main hidden>template</main><main>shown</main>": "shown",
    "<div style='display: none'><main>template</main></div><p>shown": "shown",
    "<aside><a href=a>one</a> <a href=b>two</a></aside><p>text": "text",
}


@pytest.mark.parametrize("page", SHOWN)
def test_what_a_page_shows(read: Read, page: str) -> None:
    assert (
        read("a.html", f"<!doctype html><meta charset=utf-8><body>{page}".encode()).text
        == SHOWN[page]
    )


def test_a_page_saved_behind_a_dialog_is_read(read: Read) -> None:
    assert (
        read("a.html", b"<div aria-hidden=true><h1>T</h1><p>all of it</p></div>").text
        == "# T\n\nall of it"
    )


def test_notes_of_a_book_are_read(read: Read) -> None:
    body = (
        "<body><p>word<sup>1</sup></p><aside epub:type='footnote' xmlns:epub='x'><p>the"
        " note</p></aside></body>"
    )
    assert read("a.epub", make_epub([body])).text == "word[1]\n\nthe note"
