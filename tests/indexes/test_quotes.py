"""Quotations of answers: found, altered, elsewhere or absent, word for word."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.search.quotations import quotations
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store import expressions
from aveyb_retrieval.indexes.store.tables import PARTS
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.store.tables import Part

LOAN = (
    "# Loan\n\nThe borrower repays the loan in twelve instalments of 1,250.50 EUR. Interest of 4.5"
    " % a year is due on 1 March. The lender may not sell the loan without consent.\n\n##"
    " Default\n\nA well-known rule: who is 30 days late pays 2 % more."
)
TANK = (
    "# Tank\n\nThe tank holds 900 litres at -5 degrees. Nobody enters it alone. Open the vent"
    " before the hatch. It leaks in 1e-5 of all cases."
)
JAPANESE = "\u5951\u7d04\u306f\u4e09\u304b\u6708\u524d\u306e\u901a\u77e5\u3067\u7d42\u4e86\u3059\u308b\u3002"  # noqa: E501
ROWS = [
    {"_id": "loan", "text": LOAN, "team": "bank"},
    {"_id": "tank", "text": TANK, "team": "plant"},
    {"_id": "japanese", "text": JAPANESE, "team": "plant"},
]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    root = tmp_path_factory.mktemp("quotes") / "ix"
    build_index(ROWS, root, model=FakeEmbedder())
    with Retriever.load(root, model=FakeEmbedder()) as found:
        yield found


def verdicts(retriever: Retriever, answer: str) -> list[str]:
    return [check.verdict for check in retriever.check_quotes(answer)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('It says "one two" and \u201ethree\u201c.', ["one two", "three"]),
        (
            "\u00abone\u00bb \u00bbtwo\u00ab \u300cthree\u300d \u2018four\u2019",
            ["one", "two", "three", "four"],
        ),
        ("\u2018the tenant\u2019s notice\u2019 counts", ["the tenant\u2019s notice"]),
        ("> one\n> two\n\nand\n\n> three", ["one\ntwo", "three"]),
        ('`"code"` and\n```\n"code"\n```\n"text"', ["text"]),
        ('a 5" pipe, an open "quotation', []),
        ('"" \u201c \u201d', []),
        (
            "\u3008one\u3009 \uff62two\uff63 \u05f4three\u05f4 ``four''",
            ["one", "two", "three", "four"],
        ),
        ("'the tenants' notice' counts, and the owner's 'rent'", ["the tenants' notice", "rent"]),
        ("the '90s, rock 'n' roll and the boys' club", []),
        ("'cats and dogs' are loved", ["cats and dogs"]),
        ('"foo bar. Then "one two" and', ["one two"]),
        ('"one "two" three" four', ['one "two" three']),
        ("\u201cone.\n\n\u201ctwo.\u201d", ["one.\n\n\u201ctwo."]),
        (
            '\u4ed6\u8bf4"\u79df\u91d1"\u7684\u65f6\u5019"\u4e0d\u51cf"\u3002',
            ["\u79df\u91d1", "\u4e0d\u51cf"],
        ),
        (">> one\n>> two [12] three\n", ["one\ntwo [12] three"]),
        (
            "it says &quot;one &amp; two&quot;, &#34;three&#34; and &laquo;four&raquo;",
            ["one & two", "three", "four"],
        ),
        ('<q>one <b>two</b></q> and <Q cite="x">three</Q>', ["one  two", "three"]),
        (
            "<p>So:</p><blockquote class='a'>\n<p>one \"two\" three [4]</p>\n</blockquote>",
            ['one "two" three'],
        ),
        ("don&#39;t, a <q>quotation, a </q> and <quote>none</quote>", ["quotation, a"]),
        ("`<q>code</q>` and &amp;quot;", []),
        # one mark typed, the other one set
        ('\u201ethe term ends." Then.', ["the term ends."]),
        ('\u201cnine months."', ["nine months."]),
        ('"nine months\u201d, "one\u201c.', ["nine months", "one"]),
        ("\u201done\" and \u201atwo'. Or \u2018three'.", ["one", "two", "three"]),
        ("'four\u2019 is 'five\u2019.", ["four", "five"]),
        (
            '\u201cone" and "two\u201d; \u201ethree." und \u201efour."[1]',
            ["one", "two", "three.", "four."],
        ),
        (
            '&ldquo;one" and \u201etwo 2025" und \u201ethree 2026" x',
            ["one", "two 2025", "three 2026"],
        ),
        ('\u201eone "two" three." \u201efour "five""', ['one "two" three.', 'four "five"']),
        # as before
        ('\u201ca 5" pipe, 6" \u201d', ['a 5" pipe, 6"']),
        ('"a 5\u201d pipe"', ["a 5\u201d pipe"]),
        ('\u201cone "(two)" three, the "-sign\u201d', ['one "(two)" three, the "-sign']),
        (
            "\u2018the tenants' rock 'n' roll, o' course\u2019",
            ["the tenants' rock 'n' roll, o' course"],
        ),
        ('the \u201890s, "the tenants\' notice" and "two"', ["the tenants' notice", "two"]),
        (
            '"\u4ed6\u201c\u300a\u4e66\u300b\u597d\u201d\u3002"',
            ["\u4ed6\u201c\u300a\u4e66\u300b\u597d\u201d\u3002"],
        ),
        ('\u201c\u4ed6\u8bf4"\u4f60\u597d"\u4e86\u201d', ['\u4ed6\u8bf4"\u4f60\u597d"\u4e86']),
        (
            '"\u201cone\u201d two" \u201c"(three)" four\u201d',
            ["\u201cone\u201d two", '"(three)" four'],
        ),
        ('\u201ca 5" pipe.\n\n\u201ctwo.\u201d', ['a 5" pipe.\n\n\u201ctwo.']),
        ('\u201cone.\n\n\u201ctwo."', ["one.\n\n\u201ctwo."]),
    ],
)
def test_what_is_a_quotation(answer: str, expected: list[str]) -> None:
    assert [each.text for each in quotations(answer)] == expected


@pytest.mark.parametrize(
    ("answer", "mark"),
    [
        ('"a" [2]', (2,)),
        ('"a," [12].', (12,)),
        ('"a" is [1]', ()),
        ("> a [3]", (3,)),
        ("> a\n> \u2014 the handbook\n\n[3]", (3,)),
        ('"a" [2][1]', (2, 1)),
        ('"a" [2, 4-6]', (2, 4, 5, 6)),
        ('[2]: "a"', (2,)),
        ('see [2] "a"', (2,)),
        ('so it is [2]. "a"', ()),
        ('[2] says "a"', (2,)),
        ("It is so. [2] says that: \u201ca\u201d.", (2,)),
        ('According to [2], the lease says "a"', (2,)),
        ("- Source [12] reads &quot;a&quot;", (12,)),
        ("[2] says <q>a</q>", (2,)),
        ('[2] says "a" [3]', (3,)),
        ("<q>a</q> [2]", (2,)),
        ("&quot;a&quot; [2]", (2,)),
        ("<blockquote>a [2]</blockquote>", (2,)),
        ("<blockquote>a</blockquote> [2]", (2,)),
        ('The rent of the house rises [2] and it says "a"', ()),
        ('The rent rises [2]. It says "a"', ()),
        ('In [2] and elsewhere "a"', ()),
        ('So it is. Rent rises, [2] and it says "a"', ()),
    ],
)
def test_the_marks_beside_it(answer: str, mark: tuple[int, ...]) -> None:
    (found,) = quotations(answer)
    assert (found.text.rstrip(","), found.marks) == ("a", mark)


def test_a_mark_belongs_to_one_quotation() -> None:
    found = quotations('"one" [1] and "two" are there. [3] says "three" and "four".')
    assert [(each.text, each.marks) for each in found] == [
        ("one", (1,)),
        ("two", ()),
        ("three", (3,)),
        ("four", ()),
    ]


def test_marks_without_end_take_linear_time() -> None:
    for marks in ("\u201c", "\u201e", "\u2018a\u2019b ", "'s a", '" '):
        assert not any(re.sub("[' sa]", "", each.text) for each in quotations(marks * 50_000))
    assert len(list(quotations('"a" ' * 50_000))) == 50_000
    for marks in ("<q>", "<q ", "&quot;", "[2] says ", "<blockquote>a ", '[1] a "b" '):
        began = time.process_time()
        list(quotations(marks * 50_000))
        assert time.process_time() - began < 3, marks


@pytest.mark.parametrize(
    "quote",
    [
        "repays the loan in twelve instalments of 1,250.50 EUR",
        "REPAYS  the\nloan in twelve instal-\nments",
        "A well known rule: who is 30 days late",
        "a wellknown rule",
        "Interest of 4.5 % a year",
        "may not sell the loan \u2026 who is 30 days late",
        "The borrower repays [...] without consent",
        "holds 900 litres at \u22125 degrees",
        "\u4e09\u304b\u6708\u524d\u306e\u901a\u77e5",
        "instalments",
        "[r]epays the loan in twelve instalments",
    ],
)
def test_found(quote: str, retriever: Retriever) -> None:
    (check,) = retriever.check_quotes(f"It says \u201c{quote}\u201d.")
    assert check.verdict == "found"
    text = next(row["text"] for row in ROWS if row["_id"] == check.id)
    assert check.span is not None
    assert text[slice(*check.span)] == check.stored


@pytest.mark.parametrize(
    ("quote", "differences"),
    [
        ("repays the loan in eleven instalments", [("eleven", "twelve")]),
        ("instalments of 1,350.50 EUR. Interest of 4.5 %", [("1,350.50", "1,250.50")]),
        ("Interest of 45 % a year is due", [("45", "4.5")]),
        ("Interest of 4.5 \u20ac a year is due on 1 March", [("\u20ac", "%")]),
        ("The lender may sell the loan without consent", [("", "not")]),
        ("The lender may not sell the loan with consent", [("with", "without")]),
        ("The tank holds 900 litres at 5 degrees", [("5", "-5")]),
        ("It leaks in 1e5 of all cases", [("1e5", "1e-5")]),
        ("Interest of 4.5 % a year is due on 3 April", [("3 april", "1 march")]),
        ("Each lender may not sell the loan", [("each", "the")]),
        ("A bank repays the loan in twelve instalments", [("a bank", "the borrower")]),
        ("late pays 2 % more and three euros", [("and three euros", "")]),
        ("the loan without any written consent", [("any written", "")]),
        ("Open the hatch before the vent", None),
        ("No body enters it alone", None),
        ("of 1,950 EUR. Interest of 7 % a", None),
        ("who is 30 days late \u2026 may not sell the loan", None),
    ],
)
def test_altered(
    quote: str, differences: list[tuple[str, str]] | None, retriever: Retriever
) -> None:
    (check,) = retriever.check_quotes(f'"{quote}"')
    assert check.verdict == "altered"
    if differences is not None:
        assert list(check.differences) == differences


@pytest.mark.parametrize(
    "quote", ["The garden is watered by the neighbours on Sunday", "the and of is a in it to be"]
)
def test_absent(quote: str, retriever: Retriever) -> None:
    (check,) = retriever.check_quotes(f'"{quote}"')
    assert (check.verdict, check.id, check.span) == ("absent", None, None)


def test_one_or_two_words_that_are_not_there_are_no_quotation(retriever: Retriever) -> None:
    assert retriever.check_quotes('the "so called" pump') == []


def test_in_the_hit_that_is_named_in_another_or_in_none(retriever: Retriever) -> None:
    hits = [hit for hit in retriever.search("loan", k=3, mode="lexical") if hit.id == "loan"]
    hits += [hit for hit in retriever.search("tank", k=3, mode="lexical") if hit.id == "tank"]
    answer = '"Nobody enters it alone" [2] "Nobody enters it alone" [1] "Nobody enters it alone"'
    found = retriever.check_quotes(answer, hits)
    assert [(check.verdict, check.id, check.mark) for check in found] == [
        ("found", "tank", 2), ("elsewhere", "tank", 1), ("found", "tank", None),
    ]  # fmt: skip
    (both,) = retriever.check_quotes('"Nobody enters it alone" [1, 2]', hits)
    assert (both.verdict, both.mark) == ("found", 2)
    assert retriever.check_quotes('"Nobody enters it alone"', hits[:1])[0].verdict == "elsewhere"
    assert retriever.check_quotes('"Nobody enters it alone"', [])[0].verdict == "elsewhere"


def test_only_documents_of_the_filter_exist(retriever: Retriever) -> None:
    (check,) = retriever.check_quotes('"Nobody enters it alone"', filter={"team": "bank"})
    assert check.verdict == "absent"


def test_page_file_and_version_of_what_is_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    top = tmp_path_factory.mktemp("files")
    (top / "f").mkdir()
    (top / "f" / "a.txt").write_text("The vent is open.\n\fThe hatch is closed at night.")
    build_index(top / "f", top / "ix", model=FakeEmbedder())
    with Retriever.load(top / "ix", model=FakeEmbedder()) as found:
        (check,) = found.check_quotes('"The hatch is closed"')
        assert (check.page, check.place) == (None, "")
        assert check.version == found.version
        assert len(check.sha256 or "") == 64


def test_pages_that_are_none_are_called_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    cue = "{0}\n00:00:0{0},000 --> 00:00:0{0},900\n{1}\n\n"
    said = ["Welcome to the talk.", "A turbine gives two megawatts."]
    (tmp_path / "f" / "a.srt").write_text("".join(map(cue.format, (1, 2), said)))
    (tmp_path / "f" / "a.csv").write_text("name,age\nAna,5\n")
    build_index(tmp_path / "f", tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as found:
        (check,) = found.check_quotes('"A turbine gives two megawatts"')
        assert (check.page, check.place) == (2, "time 0:00:02")
        assert check.to_dict()["place"] == check.place


def test_what_is_no_answer(retriever: Retriever) -> None:
    assert retriever.check_quotes("") == []
    with pytest.raises(ConfigError, match="answer is of type int"):
        retriever.check_quotes(3)  # type: ignore[arg-type]


# --- reading without a search --------------------------------------------------------------------


def test_grep(retriever: Retriever) -> None:
    found = retriever.grep(r"\d+ (days|litres)")
    assert [(match.id, match.line[:5]) for match in found] == [("loan", "A wel"), ("tank", "The t")]
    assert LOAN[slice(*found[0].span)] == "30 days"
    assert [match.id for match in retriever.grep("TANK", ignore_case=True, limit=1)] == ["tank"]
    assert retriever.grep("TANK") == []
    assert retriever.grep("^# ", filter={"team": "bank"})[0].id == "loan"


@pytest.mark.parametrize(
    ("pattern", "options", "message"),
    [
        ("(", {}, "not a regular expression"),
        ("", {}, "must have 1 to 1,000"),
        ("a" * 1001, {}, "must have 1 to 1,000"),
        ("a", {"limit": 0}, "must be 1 to 1,000"),
        ("a", {"limit": 1001}, "must be 1 to 1,000"),
    ],
)
def test_what_is_no_expression(
    pattern: str, options: dict[str, int], message: str, retriever: Retriever
) -> None:
    with pytest.raises(ConfigError, match=message):
        retriever.grep(pattern, **options)  # type: ignore[arg-type]


def test_an_expression_that_would_run_for_ever(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expressions, "EXPRESSION_SECONDS", 0.1)
    root = tmp_path_factory.mktemp("long") / "ix"
    build_index([{"_id": "a", "text": "a" * 20_000 + " b"}], root, model=FakeEmbedder())
    with (
        Retriever.load(root, model=FakeEmbedder()) as found,
        pytest.raises(ConfigError, match=r"took longer than 0\.1 s"),
    ):
        found.grep("(a+)+c")


def test_an_expression_has_its_time_for_matching_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"_id": str(i), "title": f"T{i}", "text": f"item {i} of {i % 7}", "n": i}
        for i in range(3000)
    ]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    read = []

    def slowly(self: Snapshot, docs: Sequence[int], parts: Sequence[Part] = PARTS) -> Any:
        read.append((len(docs), tuple(parts)))
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return documents(self, docs, parts)

    documents = Snapshot.documents
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as found:
        # reading takes 0.6 s, matching a tenth
        monkeypatch.setattr(expressions, "EXPRESSION_SECONDS", 0.3)
        monkeypatch.setattr(Snapshot, "documents", slowly)
        assert found.grep("no such words") == []
        assert {parts for _, parts in read} == {("text",)}
        read.clear()
        matches = found.grep(r"^item (1500|2999) ")
        assert [(each.id, each.title) for each in matches] == [("1500", "T1500"), ("2999", "T2999")]
        assert sum(count for count, parts in read if parts != ("text",)) == 2
        assert [each.id for each in found.grep("of 3", limit=3)] == ["3", "10", "17"]


def test_a_document_by_its_id(retriever: Retriever) -> None:
    assert retriever["loan"] == retriever.get(["loan"])[0]
    for id in ("nothing", 3):
        with pytest.raises(InputError):
            retriever[id]  # type: ignore[index]


def test_outline_and_parts(retriever: Retriever) -> None:
    sections = retriever.outline("loan")
    assert [section.heading for section in sections] == ["Loan", "Default"]
    assert sections[0].span == (0, LOAN.index("## Default"))
    part = retriever.read("loan", heading=" default ")
    assert (part.text, part.left_out) == (LOAN[LOAN.index("## Default") :], 0)
    short = retriever.read("loan", max_tokens=25)
    assert short.text.rstrip().endswith("EUR.")
    assert short.left_out == len(LOAN) - len(short.text)
    assert retriever.read("loan", span=(10, 20)).text == LOAN[10:20]
    with pytest.raises(InputError, match="no heading 'Rent'; the headings are 'Loan', 'Default'"):
        retriever.read("loan", heading="Rent")
    with pytest.raises(InputError):
        retriever.outline("nothing")
    for options in (
        {"span": (0, 10_000)},
        {"span": (5, 2)},
        {"span": (0, 1), "heading": "Loan"},
        {"max_tokens": 0},
    ):
        with pytest.raises(ConfigError):
            retriever.read("loan", **options)  # type: ignore[arg-type]


def test_contents(tmp_path: Path) -> None:
    rows = [{"_id": f"laws/{i % 2}/{i}", "text": f"# Law {i}", "team": i % 3} for i in range(301)]
    build_index(
        [*rows, {"_id": "readme", "text": "# About"}], tmp_path / "ix", model=FakeEmbedder()
    )
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as found:
        top = found.contents()
        assert (top.folders, [each.id for each in top.documents], top.left) == (
            [("laws/", 301)],
            ["readme"],
            0,
        )
        assert found.contents("laws/").folders == [("laws/0/", 151), ("laws/1/", 150)]
        assert found.contents("laws/", offset=1).folders == [("laws/1/", 150)]
        few = found.contents("laws/1/")
        assert (len(few.documents), few.documents[1].name, few.folders, few.left) == (
            150,
            "Law 3",
            [],
            0,
        )
        assert len(found.contents(filter={"team": 1}).documents) == 100
        assert found.contents("none/") == ([], [], 0)
        assert [each.id for each in found.contents(offset=1).documents] == ["readme"]
    done = CliRunner().invoke(main, ["outline", str(tmp_path / "ix"), "laws/"])
    assert done.stdout == "laws/0/  151 documents\nlaws/1/  150 documents\n"
    assert (
        CliRunner()
        .invoke(main, ["outline", str(tmp_path / "ix")])
        .stdout.endswith("readme  About\n")
    )
    assert CliRunner().invoke(main, ["outline", str(tmp_path / "ix"), "laws"]).exit_code == 2


def test_folders_are_counted_once_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"_id": f"{i % 3}/{i}", "text": "a", "n": i % 2} for i in range(2400)]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    reads = record_calls(monkeypatch, Snapshot, "documents")
    with Index.open(tmp_path / "ix", model=FakeEmbedder()) as index:
        first = [index.contents(), index.contents("1/"), index.contents(filter={"n": 1})]
        assert first[0].folders == [("0/", 800), ("1/", 800), ("2/", 800)]
        assert first[2].folders == [("0/", 400), ("1/", 400), ("2/", 400)]
        reads.clear()
        again = [index.contents(), index.contents("1/"), index.contents(filter={"n": 1})]
        assert again == first
        assert sum(len(call["docs"]) for call in reads) == 200, "the documents that are shown"
        assert [each.id for each in index.contents("1/", offset=799).documents] == ["1/2398"]
        index.add([{"_id": "1/new", "text": "a"}])
        assert index.contents().folders == [("0/", 800), ("1/", 801), ("2/", 800)]


def test_of_many_documents_in_one_folder_the_rest_is_counted(tmp_path: Path) -> None:
    build_index(
        [{"_id": str(i), "text": "a"} for i in range(203)], tmp_path / "ix", model=FakeEmbedder()
    )
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as found:
        assert (len(found.contents().documents), found.contents().left) == (200, 3)
        assert [each.id for each in found.contents(offset=200).documents] == ["200", "201", "202"]


def test_what_a_document_is_called(retriever: Retriever) -> None:
    assert [document.name for document in retriever.documents()] == ["Loan", "Tank", "japanese"]


def test_frequent_words_alone_are_found_though_other_documents_have_more_of_them(tmp_path):
    rows = [
        {"_id": f"many-{i}", "text": "was this all of it and that " * 3 + f"story{i}"}
        for i in range(30)
    ]
    rows.append(
        {
            "_id": "one",
            "text": "A long report of the harbour. " * 20 + "And that was all of it, this is it.",
        }
    )
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        (check,) = retriever.check_quotes('He said "and that was all of it, this is it".')
        assert (check.verdict, check.id) == ("found", "one")
        assert (
            retriever.check_quotes('He said "and that is all this was, it of".')[0].verdict
            == "altered"
        )
