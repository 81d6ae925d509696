"""Which documents a question names, and what it asks of them, on small made documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aveyb_retrieval.indexes.search.names import (
    MAX_NAMED_DOCUMENTS,
    MAX_PROPOSED_DOCUMENTS,
    MAX_QUESTION_WORDS,
    NameMatch,
    Tops,
    best_scores,
    compare,
    find_named,
    naming_words,
    propose,
    question_terms,
    score_within,
    sure_nats,
)
from aveyb_retrieval.indexes.store.called import (
    SEPARATOR,
    CalledBy,
    called_by,
    name_text,
    with_parts,
)
from aveyb_retrieval.indexes.store.words import Language, language
from aveyb_retrieval.indexes.types import PASSAGE_BITS
from tests.recorder import record_calls

ENGLISH = language("english")


@dataclass(frozen=True)
class Made:
    """A document: how it is called, and what its best passages hold."""

    id: str
    title: str = ""
    beginning: str = ""
    text: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    passages: int = 40


def find(question: str, made: list[Made], rules: Language = ENGLISH) -> tuple[list[str], str]:
    """Return the ids of the named documents, and the rest of the question."""
    named = named_by(question, made, rules)
    if named is None:
        return [], question
    return [made[doc].id for doc in named.docs.tolist()], named.rest


def named_by(
    question: str, made: list[Made], rules: Language = ENGLISH, within: list[int] | None = None
) -> NameMatch | None:
    terms = question_terms(question, rules.words(question), rules)
    held = [set(rules.stored(f"{each.beginning} {each.text}").split()) for each in made]
    found = np.array([[term in words for term in terms.terms[: terms.known]] for words in held])
    called = [called_by(rules, each.id, each.title, each.metadata, each.beginning) for each in made]
    docs = np.arange(len(made), dtype=np.int64)
    passages = np.array([each.passages for each in made], np.int64)
    among = compare(terms, docs, passages, called, found.reshape(len(made), terms.known), rules)
    selected = None if within is None else np.array(within, np.int64)
    return None if among is None else find_named(terms, among, selected)


BIRDS = ["Osprey", "Kestrel", "Harrier", "Merlin", "Plover", "Dunlin", "Curlew", "Avocet"]
TEXT = "the supplier shall give notice of prices and delay under this agreement"


def contracts(**how: str) -> list[Made]:
    """Eight contracts that differ in how they are called; `{}` stands for the name."""
    return [
        Made(**{"id": f"d{n}", "text": TEXT, **{key: how[key].format(bird) for key in how}})
        for n, bird in enumerate(BIRDS)
    ]


@pytest.mark.parametrize(
    "how",
    [
        {"title": "Supply agreement {} Ltd"},
        {"id": "contracts/2024/{}-supply.md"},
        {"id": "contracts/Supply%20{}%20final.pdf", "title": "Supply agreement"},
        {"id": "files/Supply{}Final.docx"},
        {"beginning": "# Agreement\n\nbetween {} Ltd and Northern Works"},
    ],
)
def test_a_document_is_named_by_what_it_is_called(how: dict[str, str]) -> None:
    made = contracts(**how)
    ids, rest = find("What notice is needed in the Osprey agreement?", made)
    assert ids == [made[0].id]
    assert "Osprey" not in rest
    assert rest.startswith("What notice is needed")


def test_metadata_that_people_set_name_a_document() -> None:
    made = [
        Made(f"d{n}", text=TEXT, metadata={"client": bird, "year": 2024, "created": "2024-05-06"})
        for n, bird in enumerate(BIRDS)
    ]
    assert find("What notice does Curlew get?", made) == (["d6"], "What notice does get?")
    assert find("What notice was given on 2024-05-06?", made)[0] == []
    nested = [
        Made(f"d{n}", text=TEXT, metadata={"project": {"names": [bird, "x" * 200]}})
        for n, bird in enumerate(BIRDS)
    ]
    assert find("What notice does Curlew get?", nested)[0] == ["d6"]


@pytest.mark.parametrize("question", ["What does Best Buy sell?", "What does BEST BUY sell?"])
def test_words_that_a_path_writes_as_one(question: str) -> None:
    names = ["BESTBUY", "BANKOFAMERICA", "3M", "ADOBE", "NIKE", "PEPSICO"]
    made = [Made(f"{name}_2018_10K.pdf", text="buy the best in America") for name in names]
    assert find(question, made) == (["BESTBUY_2018_10K.pdf"], "What does sell?")
    assert find("What did Bank of America lend?", made)[0] == ["BANKOFAMERICA_2018_10K.pdf"]


def test_words_that_nearly_all_hold_are_not_named_because_they_stand_together() -> None:
    made = contracts(title="{} Non Disclosure Agreement")
    made[3] = Made("d3", "MerlinNondisclosureAgreement", text=TEXT)
    assert find("Osprey's Non-Disclosure Agreement: what notice?", made) == (
        ["d0"],
        ": what notice?",
    )


def test_a_year_of_a_path_tells_the_files_of_one_name_apart() -> None:
    made = [
        Made(f"{name}_{year}_10K.pdf", text="revenue in 2016 2017 2018")
        for name in ("ADOBE", "NIKE", "AMCOR", "PEPSICO")
        for year in (2016, 2017, 2018)
    ]
    for year in ("2017", "FY2017"):
        named = named_by(f"What was Nike's revenue in {year}?", made)
        assert named is not None
        best = int(named.competing[np.argmax(named.document_gain)])
        assert made[best].id == "NIKE_2017_10K.pdf"
        assert named.rest == f"What was revenue in {year}?"  # numbers stay
    assert find("What was the revenue in 2017?", made)[0] == []  # a year alone names nothing


@pytest.mark.parametrize("running", ["n{}", "doc-{}", "{}.txt", "mails/{}"])
def test_a_year_is_no_name_of_a_document_that_is_numbered(running: str) -> None:
    beginnings = dict.fromkeys((2010, 2012, 2014, 2016, 2018), "a coach who plays")
    made = [
        Made(running.format(year), beginning=beginnings.get(year, ""), text="shows")
        for year in range(2009, 2021)
    ]
    question = "who is playing the halftime show of 2018"
    assert named_by(question, made) is None
    # words that the id has, too, say that its number is meant
    made[9] = Made(f"halftime-{running.format(2018)}", beginning=beginnings[2018], text="shows")
    assert find(question, made)[0] == [made[9].id]


def test_a_short_number_needs_a_word_of_the_document_beside_it() -> None:
    made = [
        Made(f"{n}", beginning="bankruptcy" if n in (3, 7) else "", text="law") for n in range(24)
    ]
    question = "What does the law on bankruptcy say in chapter 7?"
    named = named_by(question, made)
    assert named is None or not named.document_gain.any()
    made = [Made(f"aeromix-{n}.pdf", text="filter") for n in (300, 500, 700)]
    made += [Made(f"borealis-{n}.pdf", text="filter") for n in range(300, 312)]
    named = named_by("How is the filter of an AeroMix 300 cleaned?", made)
    assert named is not None
    assert made[int(named.competing[np.argmax(named.document_gain)])].id == "aeromix-300.pdf"


@pytest.mark.parametrize(("called", "named"), [("beginning", []), ("title", ["d0"])])
def test_words_of_a_subject_are_no_name_where_they_only_begin_a_text(
    called: str, named: list[str]
) -> None:
    words = ["currency", "depreciation", "exports"]
    made = [
        Made(f"d{n}", text="rates", **{called: " ".join(words) if n == 0 else words[n % 3]})
        for n in range(13)
    ] + [Made(f"d{n}", text="rates") for n in range(13, 24)]
    question = "Would a depreciation of the currency change the rates of exports?"
    assert find(question, made)[0] == named
    # a word that one of them alone has is a name wherever it stands
    made[0] = Made("d0", text="rates", **{called: f"{' '.join(words)} of Malawi"})
    assert find(f"In Malawi, {question}", made)[0] == ["d0"]


@pytest.mark.parametrize("company", ["Northern Lamp Works", "Grey Harbour"])
def test_a_name_written_as_one_word_is_worth_as_much_as_its_words(company: str) -> None:
    names = [company, "Adobe", "Nike", "Amcor", "Pepsico", "Verizon"]
    made = [
        Made(f"{name.upper().replace(' ', '')}_{year}.pdf", text=f"dividends of {year}")
        for name in names
        for year in (2019, 2020, 2021)
    ]
    # one of the company's documents begins with the name in words, and with a run of two of them
    begins = f"{company}, {''.join(company.split()[:2])}.example"
    made[2] = Made(made[2].id, beginning=begins, text="dividends of 2021")
    named = named_by(f"What did {company} pay in dividends for FY2020?", made)
    assert named is not None
    gains = dict(zip(named.competing.tolist(), named.passage_gain.tolist(), strict=True))
    assert gains[0] == pytest.approx(gains[2])
    assert gains[1] > gains[0]  # the year decides
    assert named.rest == "What did pay in dividends for FY2020?"


@pytest.mark.parametrize("others", [4, 7, 40, 150])
def test_a_sure_name_weighs_the_same_among_few_and_many(others: int) -> None:
    made = [Made(f"m{n}", f"Pump KV{n}5 manual", text="oil filter") for n in range(others + 1)]
    named = named_by("Which oil does the KV25 take?", made)
    assert named is not None
    assert named.docs.tolist() == [2]
    assert named.passage_gain.tolist() == [pytest.approx(0.5 * (1 - 1 / 40))]


def test_numbers_of_a_name_go_with_it_and_years_stay() -> None:
    made = [Made(f"m{n}", f"AeroMix {n}00 manual, 2023", text="filter") for n in range(1, 9)]
    assert find("Which filter has the AeroMix 300?", made) == (["m3"], "Which filter has the ?")
    made = [Made(f"{bird}_{2016 + n}.pdf", text="sales") for n, bird in enumerate(BIRDS)]
    question = "What were the 3 largest sales of Osprey 2016?"
    assert find(question, made) == (["Osprey_2016.pdf"], "What were the 3 largest sales of 2016?")


def test_codes_do_not_stay() -> None:
    made = [Made(f"m{n}", f"Pump KV{n}5 manual", text="oil filter") for n in range(8)]
    assert find("KV25: which oil?", made) == (["m2"], ": which oil?")


def test_a_whole_name_and_its_words_up_to_the_end_of_a_clause() -> None:
    made = contracts(beginning="Agreement between {} Pharma, Inc. and its customers")
    ids, rest = find("In the contract with Merlin Pharma, Inc., who pays its customers?", made)
    assert ids == ["d3"]
    assert rest == "In the contract with ., who pays its customers?"
    assert find("Pharma, Inc.: who pays?", made)[0] == []  # all are called so


def test_two_documents_are_named() -> None:
    made = contracts(title="Supply agreement {}")
    ids, rest = find("Compare Osprey and Dunlin: which prices?", made)
    assert ids == ["d0", "d5"]
    assert rest == "Compare and : which prices?"


@pytest.mark.parametrize(
    "question",
    [
        "What notice is needed?",
        "",
        "   ",
        "?!",
        "the of and",
        "Which prices did the buzzard raise?",
    ],
)
def test_a_question_that_names_nothing(question: str) -> None:
    assert named_by(question, contracts(title="Supply agreement {}")) is None


def test_what_all_are_called_by_names_none() -> None:
    made = [Made(f"d{n}", "Annual report Osprey", "Annual report Osprey") for n in range(20)]
    assert named_by("What does the Osprey annual report say?", made) is None
    assert named_by("Osprey", []) is None


def test_a_question_that_is_all_name_has_no_rest() -> None:
    made = contracts(title="{} agreement")
    assert find("the Osprey agreement", made) == (["d0"], "")


def test_at_most_eight_are_named() -> None:
    made = [Made(f"o{n}", "Osprey file", text="Osprey") for n in range(10)]
    made += [Made(f"d{n}", "Other file") for n in range(40)]
    named = named_by("Osprey prices?", made)
    assert named is None or len(named.docs) <= MAX_NAMED_DOCUMENTS


def test_documents_of_one_passage_need_no_order_within() -> None:
    made = [Made(f"d{n}", bird, bird, passages=1) for n, bird in enumerate(BIRDS)]
    named = named_by("What notice must Osprey give?", made)
    assert named is not None
    assert named.rest == "What notice must Osprey give?"
    assert not named.passage_gain.any()


@pytest.mark.parametrize(
    ("titles", "question", "rules"),
    [
        (["Договор Сапсан", "Договор Кречет", "Договор Беркут"], "Какой срок у Сапсан?", "russian"),  # noqa: RUF001
        (["隼製造契約", "鷹物流契約", "鶴化学契約"], "隼製造の価格はいくらですか", "none"),
        (["Σύμβαση Αετός", "Σύμβαση Γλάρος", "Σύμβαση Κίσσα"], "Τι τιμή έχει Αετός;", "greek"),  # noqa: RUF001
    ],
)
def test_names_in_other_scripts(titles: list[str], question: str, rules: str) -> None:
    made = [Made(f"d{n}", title, title) for n, title in enumerate(titles)]
    assert find(question, made, language(rules))[0] == ["d0"]


def test_only_the_first_words_of_a_question_are_looked_at() -> None:
    made = contracts(title="Supply agreement {}")
    long = " ".join(f"word{n}" for n in range(MAX_QUESTION_WORDS))
    assert find(f"{long} Osprey", made)[0] == []
    ids, rest = find(f"Osprey {long} {long}", made)
    assert ids == ["d0"]
    assert rest == f"{long} {long}"


def test_of_long_titles_and_questions_only_the_beginning_is_looked_at() -> None:
    rules = ENGLISH
    title = " ".join(f"word{n}" for n in range(10_000))
    made = [Made(f"d{n}", title, text=TEXT) for n in range(20)]
    question = " ".join(f"word{n}" for n in range(10_000))
    words = rules.words(question)
    terms = question_terms(question, words, rules)
    called = [called_by(rules, each.id, each.title, {}, "") for each in made]
    docs = np.arange(20, dtype=np.int64)
    among = compare(terms, docs, docs + 9, called, np.zeros((20, terms.known), np.bool_), rules)
    assert among is None or find_named(terms, among) is None
    assert len(terms.tokens) == MAX_QUESTION_WORDS
    assert max(len(each.title) for each in called) < 1100
    assert len(naming_words(terms, rules)) <= 3 * MAX_QUESTION_WORDS


def test_half_of_the_documents_tell_nothing() -> None:
    made = contracts(title="Supply agreement {}")
    made = [
        Made(each.id, each.title, text="Osprey" if n < 5 else "") for n, each in enumerate(made)
    ]
    assert find("What notice is needed in the Osprey agreement?", made)[0] == []


def test_sure_is_one_word_that_a_single_document_has() -> None:
    for count in (1, 3, 100):
        assert sure_nats(count) == pytest.approx(np.log(1 + (count - 0.5) / 1.5))


def test_passages_keep_the_best_score_of_their_document() -> None:
    ids = np.array([1 << PASSAGE_BITS, (1 << PASSAGE_BITS) + 1, 2 << PASSAGE_BITS], np.int64)
    named = NameMatch(
        np.array([1]), "rest", frozenset(), np.array([1]), np.float32([0.5]), np.float32([0.0])
    )
    whole, rest = np.float32([2.0, 1.0, 1.5]), np.float32([0.0, 4.0, 9.0])
    tops = best_scores(named.docs, ids, whole, rest)
    assert tops == {1: Tops(2.0, 3.25)}
    score = score_within(named, ids, whole, rest, tops)
    assert score.tolist() == [pytest.approx(0.5 - 3.25 + 2 + 0.5), pytest.approx(2.5), 1.5]
    assert best_scores(np.array([7]), ids, whole, rest) == {}


def proposed(question: str, docs: list[int], lists: dict[str, list[int]]) -> list[int]:
    """Which documents names propose, where passages of `docs` hold no word of the question."""
    terms = question_terms(question, ENGLISH.words(question), ENGLISH)
    found = np.zeros((len(docs), terms.known), np.bool_)
    arrays = {word: np.array(called, np.int64) for word, called in lists.items()}
    return propose(terms, np.array(docs, np.int64), found, arrays).tolist()


def test_a_document_that_only_its_names_speak_for_is_proposed() -> None:
    competing = list(range(0, 100, 2))
    assert proposed("Osprey: what notice?", competing, {"osprey": [7, 8]}) == [7]
    assert proposed("Osprey: what notice?", competing, {"osprey": [8]}) == []  # it competes already
    assert proposed("Osprey: what notice?", competing, {"osprey": [*competing[:20], 101]}) == []
    years = {"2017": [7, 9], "nike": [7, 11, *competing[:4]]}
    assert proposed("What did Nike earn in 2017?", competing, years) == [7]
    assert proposed("What was earned in 2017?", competing, {"2017": [7]}) == []
    many = {"osprey": list(range(1, 100, 2))}
    assert proposed("Osprey", competing, many) == many["osprey"][:MAX_PROPOSED_DOCUMENTS]


def test_words_that_may_call_a_document() -> None:
    question = "Did Best Buy's FY2018 revenue rise?"
    terms = question_terms(question, ENGLISH.words(question), ENGLISH)
    assert {"best", "buy", "bestbuy", "2018", "fy2018"} <= {*naming_words(terms, ENGLISH)}
    text = name_text("files/BESTBUY_2018_10K.pdf", "Form 10-K", {"client": "Best Buy"})
    assert {"bestbuy", "2018", "best", "buy"} <= {*ENGLISH.stored(text).split()}
    assert ENGLISH.stored(name_text("", "", {})) == ""
    called = called_by(ENGLISH, "files/BESTBUY_2018.pdf", "Form 10-K", {}, "Annual\nreport of 2018")
    assert CalledBy.read(SEPARATOR.join(called)) == called
    for damaged in ("", SEPARATOR, SEPARATOR * 3):  # of a file whose bytes are others
        with pytest.raises(ValueError, match="values to unpack"):
            CalledBy.read(damaged)


def test_joined_words_are_split_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = record_calls(monkeypatch, Language, "in_order")
    question = "Which prices does Northern Lamp Works ask for spare parts, and Grey Harbour?"
    terms = question_terms(question, ENGLISH.words(question), ENGLISH)
    words = naming_words(terms, ENGLISH)
    assert len(splits) == 1
    assert {"greyharbour", *ENGLISH.in_order("northernlampworks northernlamp")} <= {*words}


def test_only_selected_documents_are_named() -> None:
    made = contracts(title="Supply agreement {}")
    assert named_by("Osprey: what notice?", made, within=[1, 3]) is None
    named = named_by("Osprey: what notice?", made, within=[0])
    assert named is not None
    assert named.docs.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("FY2018 report", ["FY", "2018"]),
        ("été FY2018", ["FY", "2018"]),
        ("report 2018Q2", ["2018", "Q2"]),
        ("س٢٠١٨", ["س", "٢٠١٨"]),
        ("12345 AB12CD 2018 9", []),
        ("3 B 2018-9", []),
        ("", []),
    ],
)
def test_letters_and_years_are_also_apart(text: str, parts: list[str]) -> None:
    assert with_parts(text) == " ".join([text, *parts])
