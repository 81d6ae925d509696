"""What a hit is cited by: the sentence that answers, and the heading over that sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Index, hits_to_prompt
from aveyb_retrieval.indexes.search.sentences import Citation, CitedText, Sentences
from aveyb_retrieval.indexes.store.words import language
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RULES = language("english")
ALIKE = {"rival": "competitor", "oil": "lubricant", "open": "opens"}


class Synonyms(FakeEmbedder):
    """A model for which words mean the same as those in ALIKE."""

    def word_vectors(
        self, texts: Sequence[str]
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        rows, tokens = [np.zeros((0, self.dim), np.float32)], []
        for text in texts:
            found = RULES.finder(RULES.in_order(text))(text)
            words = [text[each.start : each.stop].lower() for each in found]
            numbers = sum(map(len, rows)) + np.arange(len(found))
            rows += self.token_vectors(
                [" ".join(ALIKE.get(word, word) for word in words)], prompt="document"
            )
            tokens.append((numbers, np.array([each.start for each in found], np.int64)))
        return np.concatenate(rows), tokens


def sentences(query: str, model: FakeEmbedder | None = None) -> Sentences:
    words = RULES.words(query)
    return Sentences(
        query,
        RULES.finder(words),
        lambda: dict.fromkeys(words, 1.0),
        None if model is None else lambda: model,
    )


def cite(
    query: str, passage: str, heading: str, *, model: FakeEmbedder | None = None, about: str = ""
) -> Citation:
    return sentences(query, model).cite([CitedText(passage, heading, about=about)])[0]


HANDBOOK = """Nothing stands over this line.

# Water

The pump runs daily. A guard starts it.

## Oil

The lubricant is changed every 250 hours. Its grade is 15W-40.

## Sale

### Competition

If a rival buys us, Kestrel may withdraw."""


@pytest.mark.parametrize(
    ("query", "sentence", "heading"),
    [
        ("who starts the pump?", "The pump runs daily.", "Water"),
        ("is there a guard?", "A guard starts it.", "Water"),
        ("which grade of lubricant?", "The lubricant is changed every 250 hours.", "Oil"),
        ("may they withdraw?", "If a rival buys us, Kestrel may withdraw.", "Competition"),
        ("what stands here?", "Nothing stands over this line.", "The part before"),
    ],
)
def test_the_heading_is_the_one_over_the_best_sentence(
    query: str, sentence: str, heading: str
) -> None:
    cited = cite(query, HANDBOOK, "The part before")
    assert cited.sentence is not None
    assert (HANDBOOK[slice(*cited.sentence)], cited.heading) == (sentence, heading)
    assert cited.headings == ("The part before", "Water", "Oil", "Sale", "Competition")


def test_synonyms_count_where_the_model_knows_them() -> None:
    assert cite("a competitor", HANDBOOK, "").sentence is None, "no word of it is there"
    best = cite("a competitor", HANDBOOK, "", model=Synonyms()).sentence
    assert best is not None
    assert HANDBOOK[slice(*best)].startswith("If a rival")


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
@pytest.mark.parametrize(
    ("query", "operators"), [("what did Raúl repair?", False), ("+Ra* +repaired", True)]
)
def test_words_found_besides_the_questions_count(
    tmp_path: Path, query: str, operators: bool, mode: Any
) -> None:
    with Index.create(tmp_path / "ix", model=Synonyms(split_size=200)) as index:
        index.add([{"_id": "a", "text": "The pump runs. Raúl repaired it on Monday. It is old."}])
        (hit,) = index.search(query, operators=operators, mode=mode)
        assert hit.best_sentence is not None
        assert hit.text[slice(*hit.best_sentence)] == "Raúl repaired it on Monday."


def test_a_passage_that_begins_with_a_heading_is_under_that_one() -> None:
    part = HANDBOOK[HANDBOOK.index("## Oil") :]
    assert cite("zinc", part, "Oil") == (None, "Oil", ("Oil", "Sale", "Competition"))
    assert cite("zinc", "", "") == (None, "", ())
    assert cite("the oil", "# Oil", "").sentence == (0, 5), "a heading that nothing follows"


def test_clauses_are_cited_by_their_captions_within_the_article() -> None:
    text = "5.1 Term. It runs a year.\n\n5.2 Notice. A party may leave."
    for above in ("ARTICLE 5 > 5.1 Term", "ARTICLE 5"):
        found = cite("may they leave?", text, above)
        assert found.sentence is not None
        assert (text[slice(*found.sentence)], found.heading) == (
            "A party may leave.",
            "ARTICLE 5 > 5.2 Notice",
        )
    found = cite("how long is a year?", "4.4 Rent. It runs a year.", "ARTICLE 5 > 5.1 Term")
    assert found.heading == "ARTICLE 5 > 5.1 Term", (
        "a line that was broken before 4.4 begins no clause"
    )


def test_what_a_hit_cites_can_be_read(tmp_path: Path) -> None:
    text = (
        "ARTICLE 5\n\n5.1 Term. It runs a year.\n\n5.2 Notice. A party may leave.\n\nARTICLE"
        " 6\n\nThe end."
    )
    with Index.create(tmp_path / "ix", model=Synonyms(split_size=200)) as index:
        index.add([{"_id": "a", "text": text}])
        (hit,) = index.search("may they leave?")
        assert hit.heading == "ARTICLE 5 > 5.2 Notice"
        assert index.read("a", heading=hit.heading).text.strip() == "5.2 Notice. A party may leave."
        assert (
            index.read("a", heading="ARTICLE 5").text.strip()
            == text[: text.index("ARTICLE 6")].strip()
        )


def test_hits_and_prompts_cite_the_sentences_heading(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=Synonyms(split_size=200)) as index:
        index.add([{"_id": "a", "title": "Handbook", "text": HANDBOOK}])
        (hit,) = index.search("what happens if a competitor buys us?")
        assert (hit.heading, hit.headings) == (
            "Competition",
            ("Water", "Oil", "Sale", "Competition"),
        )
        assert hit.best_sentence is not None
        assert hit.text[slice(*hit.best_sentence)].startswith("If a rival")
        assert hits_to_prompt([hit]).startswith("[1] Handbook > Competition (a,")
        assert index.search("competitor", mode="lexical") == [], (
            "words are searched for without the model"
        )
        (found,) = index.search_vectors(Synonyms().encode_queries(["competitor"]))
        assert (found[0].best_sentence, found[0].heading) == (None, "")


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_names_that_a_document_begins_with_tell_no_sentence_apart(
    tmp_path: Path, mode: Any
) -> None:
    names, clause = "Zephyr Orchards and Quillon Freight", "Renewal takes a year."
    filler = "\n\n".join(
        f"Clause {number} is about weights, tides and harbors." for number in range(40)
    )
    text = (
        f"Agreement between {names}.\n\n{filler}\n\nZephyr Orchards tells Quillon Freight of a"
        f" loss. {clause} It ends."
    )
    with Index.create(tmp_path / "ix", model=Synonyms(split_size=60)) as index:
        index.add([{"_id": "a", "text": text}])
        found = index.search(
            f"between {names}, when is the renewal?", k=2, unit="passage", mode=mode
        )
        cited = {hit.best_sentence and hit.text[slice(*hit.best_sentence)] for hit in found}
        assert cited == {
            f"Agreement between {names}.",
            clause,
        }, "but those of the beginning they do"


TABLE = """supplier | contact | telephone
Volta Cables | Ines Moreau | 555-7788
Acme | Bo Li | 555-1234"""


@pytest.mark.parametrize("model", [None, Synonyms()])
def test_of_a_table_a_row_is_the_sentence(model: FakeEmbedder | None) -> None:
    marked = "\n".join(f"| {line} |" for line in TABLE.split("\n")).replace(
        "\n", "\n|---|---|---|\n", 1
    )
    for table in (TABLE, f"The list of May\n{TABLE}", f"See below.\n\n{marked}"):
        for query in ("telephone of Volta Cables", "Volta telephone"):
            best = cite(query, table, "", model=model).sentence
            assert best is not None
            assert table[slice(*best)].strip("| ") == "Volta Cables | Ines Moreau | 555-7788"


MAIL = """Hi Ana,

the crane inspector comes on the 19th of February. Bring the ladder.

> Hi Ben,
> when does the crane inspector come?
> {}Ana"""


@pytest.mark.parametrize("quoted", ["", "> Who pays?\n> "])
@pytest.mark.parametrize("model", [None, Synonyms()])
def test_the_answer_of_a_mail_goes_before_the_question_that_it_quotes(
    model: FakeEmbedder | None, quoted: str
) -> None:
    mail = MAIL.format(quoted)
    best = cite("when does the crane inspector come?", mail, "", model=model).sentence
    assert best is not None
    assert mail[slice(*best)] == "the crane inspector comes on the 19th of February."
    alone = cite("inspector", "When does the inspector come?", "", model=model).sentence
    assert alone == (0, 29), "though it is a question"


@pytest.mark.parametrize("model", [None, Synonyms()])
def test_what_all_sentences_say_tells_none_apart(model: FakeEmbedder | None) -> None:
    text = (
        "The maskray lives by the maskray reef. It is small. A maskray eats shrimp. The maskray"
        " breeds here."
    )
    best = cite("maskray shrimp", text, "", model=model).sentence
    assert best is not None
    assert text[slice(*best)] == "A maskray eats shrimp."
    text = "For each day of delay Nimbus pays 75 euro. The notice is one month."
    best = cite("notice of Nimbus", text, "", about="Agreement with Nimbus", model=model).sentence
    assert best is not None
    assert text[slice(*best)] == "The notice is one month."
    alone = cite("maskray", "The maskray is small.", "", model=model).sentence
    assert alone == (0, 21), "though its only sentence holds it"


TRAVEL = """# Travel

## Hotel limits

| City | Limit |
|---|---|
| Paris | 180 EUR |
| Rome | 140 EUR |

## Shutdown steps

1. Press the red button.
2. Close the gas tap."""
SHEET = """# Q2

Region | Revenue
North | 120
South | 90

# Q3

Region | Revenue
North | 130
South | 95

# Notes"""


@pytest.mark.parametrize(
    ("text", "query", "sentence", "heading"),
    [
        (TRAVEL, "what is the hotel limit in Paris", "| Paris | 180 EUR |", "Hotel limits"),
        (TRAVEL, "hotel limit Rome", "| Rome | 140 EUR |", "Hotel limits"),
        (TRAVEL, "what are the shutdown steps", "1. Press the red button.", "Shutdown steps"),
        (TRAVEL, "the gas tap", "2. Close the gas tap.", "Shutdown steps > 2. Close the gas tap"),
        (SHEET, "revenue North Q2", "North | 120", "Q2"),
        (SHEET, "revenue South Q3", "South | 95", "Q3"),
        (
            "Tools\n-----\n\n(a) Bring a rope.\n(b) Bring a boat.",
            "which tools",
            "(a) Bring a rope.",
            "Tools",
        ),
        ("# Rent\n\n## Deposit", "deposit", "# Rent\n\n## Deposit", "Rent"),
    ],
)
@pytest.mark.parametrize("model", [None, Synonyms()])
def test_a_heading_or_the_mark_of_an_item_is_no_sentence_where_there_is_another(
    text: str, query: str, sentence: str, heading: str, model: FakeEmbedder | None
) -> None:
    above = text.split("\n")[0].strip("# ")
    cited = cite(query, text, above, model=model)
    assert cited.sentence is not None
    assert cite("deposit", "It rains.\n\n# Deposit", "").sentence == (
        11,
        20,
    ), "for nothing else has the word"
    assert (text[slice(*cited.sentence)], cited.heading) == (sentence, heading)


class Letters(FakeEmbedder):
    """A model whose tokens are letters: it knows some of them, and no others."""

    def word_vectors(
        self, texts: Sequence[str]
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        rows = np.eye(9, dtype=np.float32)
        return rows, [
            (np.array([ord(each) % 9 for each in text], np.int64), np.arange(len(text)))
            for text in texts
        ]


class Unknown(FakeEmbedder):
    """A model to which all words are the same unknown one."""

    def word_vectors(
        self, texts: Sequence[str]
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        starts = [
            np.array([at for at, each in enumerate(f" {text}") if each == " "], np.int64)
            for text in texts
        ]
        return np.ones((1, 1), np.float32), [
            (np.zeros(len(each), np.int64), each) for each in starts
        ]


RENT = """# 租赁合同

## 第一条 租金

租金为每月八千元,于每月五日前支付。

## 第二条 押金

承租人支付两个月租金作为押金"""
STORE = "予算は来月の会議で決めます。\n\n大阪の倉庫が満杯になりました。\n\n採用は三名に絞ります"
THAI = "งบประมาณจะตัดสินในการประชุมหน้า\n\nโกดังที่เชียงใหม่เต็มแล้ว\n\nเราจะรับเพียงสามคน"
RUSSIAN = (
    "Новый продукт выйдет девятого октября. Склад в Казани переполнен. Наймём только трёх человек"
)


@pytest.mark.parametrize("model", [Letters(split_size=200), Unknown(split_size=200)])
@pytest.mark.parametrize(
    ("text", "query", "sentence", "heading"),
    [
        (RENT, "押金", "承租人支付两个月租金作为押金", "第二条 押金"),
        (RENT, "每月五日", "租金为每月八千元,于每月五日前支付。", "第一条 租金"),
        (STORE, "倉庫", "大阪の倉庫が満杯になりました。", ""),
        (STORE, "採用", "採用は三名に絞ります", ""),
        (THAI, "โกดัง", "โกดังที่เชียงใหม่เต็มแล้ว", ""),
        (RUSSIAN, "Наймём", "Наймём только трёх человек", ""),
        (RUSSIAN, "склад", "Склад в Казани переполнен.", ""),
    ],
)
def test_equal_words_tell_sentences_apart_where_the_model_knows_none(
    tmp_path: Path, text: str, query: str, sentence: str, heading: str, model: FakeEmbedder
) -> None:
    with Index.create(tmp_path / "ix", model=model) as index:
        index.add([{"_id": "a", "text": text}])
        (hit,) = index.search(query)
        assert hit.best_sentence is not None
        assert (hit.text[slice(*hit.best_sentence)], hit.heading) == (sentence, heading)
