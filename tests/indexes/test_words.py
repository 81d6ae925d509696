# ruff: noqa: RUF001  # letters of many scripts are what these tests are about
"""Words: in every language what is asked for is found however it is inflected, spaced,
or written.
"""

from __future__ import annotations

import math
import random
import tracemalloc
import unicodedata
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.engines.database_rows import held_words
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store import columns
from aveyb_retrieval.indexes.store.called import SEPARATOR
from aveyb_retrieval.indexes.store.columns import different_words, text_columns
from aveyb_retrieval.indexes.store.copies import copy_digest
from aveyb_retrieval.indexes.store.words import (
    K1,
    LANGUAGES,
    B,
    language,
    read_synonyms,
    spaced,
)
from tests.contents import problems_of
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from pathlib import Path

# a word of a text, another form of it in a query
FORMS = {
    "english": ("the running horses", "horse runs"),
    "arabic": ("الكتاب", "كتاب"),
    "danish": ("hestene løber", "hest"),
    "dutch": ("de boeken", "een boek"),
    "finnish": ("talossa on valo", "talo"),
    "french": ("les chevaux couraient", "courait"),
    "german": ("Die Häuser der Stadt", "das Haus"),
    "greek": ("τα σπίτια", "σπίτι"),
    "hungarian": ("a házakban", "ház"),
    "italian": ("i gatti dormono", "gatto"),
    "norwegian": ("hestene løper", "hest"),
    "portuguese": ("os gatos dormiram", "gato"),
    "romanian": ("casele sunt mari", "casa"),
    "russian": (
        "книги на полке",
        "книга",
    ),
    "spanish": ("los gatos durmieron", "gato"),
    "swedish": ("hästarna springer", "häst"),
    "turkish": ("evlerin kap\u0131lar\u0131", "evler"),
    "none": ("the running horses", "horses"),
}
CJK = "甲方应当在书面通知解除本合同。 ニッポンの夏 한국어 문서"


def found(reader: Retriever, query: str, **options: object) -> list[str]:
    return [hit.id for hit in reader.search(query, mode="lexical", **options)]  # type: ignore[call-overload]


def test_passages_by_words_alone_have_the_scores_of_bm25(tmp_path: Path) -> None:
    texts = {"a": "valve valve pump", "b": "valve pump pump pump", "c": "other words"}
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add([{"_id": name, "text": text} for name, text in texts.items()])
        hits = index.search("valve", mode="lexical", unit="passage")
    mean = sum(len(text.split()) for text in texts.values()) / len(texts)
    for hit in hits:
        words = texts[hit.id].split()
        counted, penalty = words.count("valve"), K1 * (1 - B + B * len(words) / mean)
        score = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5)) * counted * (K1 + 1) / (counted + penalty)
        assert hit.score == hit.scores["lexical"] == pytest.approx(score, rel=1e-5)
    assert [hit.id for hit in hits] == ["a", "b"]


@pytest.mark.parametrize("name", LANGUAGES)
def test_another_form_of_a_word_is_found_in_every_language(tmp_path: Path, name: str) -> None:
    text, query = FORMS[name]
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), language=name) as index:
        index.add([{"_id": "other", "text": "zzz qqq 123"}, {"_id": "a", "text": text}])
        assert found(index, query) == found(index, text) == ["a"]
        assert [hit.id for hit in index.search(query, mode="lexical", unit="passage")] == ["a"]
        assert found(index, text.upper()) == ["a"] or name in (
            "turkish",
            "greek",
        ), "whose capitals lose a mark"
        index.upsert(
            [{"_id": "a", "text": "nothing of it"}, {"_id": "b", "text": text, "title": "word1"}]
        )
        index.compact()
        assert found(index, query) == ["b"]
        assert problems_of(index.path) == []


def test_rules_of_one_language_are_not_those_of_another(tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "text": "Die Häuser der Stadt"},
        {"_id": "b", "text": "the running houses"},
    ]
    for name in ("german", "none", "english"):
        build_index(rows, tmp_path / name, model=FakeEmbedder(), language=name)
    with Retriever.load(tmp_path / "german") as german, Retriever.load(tmp_path / "none") as plain:
        assert (found(german, "das Haus"), found(plain, "Haus"), found(plain, "häuser")) == (
            ["a"],
            [],
            ["a"],
        )
        assert found(plain, "the") == ["b"]
        assert german.words("das Haus der Stadt") == ["haus", "stadt"]
    with Retriever.load(tmp_path / "english") as english:
        assert (found(english, "ran house"), found(english, "run")) == (["b"], ["b"])
    with pytest.raises(ConfigError, match="language='klingon': must be one of auto, english"):
        build_index(rows, tmp_path / "new", model=FakeEmbedder(), language="klingon")
    assert not (tmp_path / "new").exists()


def test_stop_words_count_where_there_are_no_others(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add(
            [{"_id": "a", "text": "to be or not to be"}, {"_id": "b", "text": "the zinc anode"}]
        )
        assert found(index, "the") == ["b"]
        assert found(index, "the or not") == ["b", "a"] or set(found(index, "the or not")) == {
            "a",
            "b",
        }
        assert found(index, "not the zinc") == ["b"]


@pytest.mark.parametrize("name", ["english", "german", "none"])
def test_scripts_without_spaces_are_found_inside_a_sentence(tmp_path: Path, name: str) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), language=name) as index:
        index.add([{"_id": "cjk", "text": CJK}, {"_id": "other", "text": "面书 声明 word1"}])
        for query in (
            "书面通知",
            "解除",
            "通",
            "ニッポン",
            "한국어",
        ):
            assert found(index, query) == ["cjk"], query
            assert found(index, query, unit="passage")[:1] == ["cjk"], query
        assert found(index, "面书") == ["other"], "the other way round"
        assert set(found(index, "面")) == {"cjk", "other"}
        assert found(index, "猫咪") == []


def test_words_and_characters_in_one_run_are_both_found(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add([{"_id": "a", "text": "Python3プログラミングGPU"}])
        for query in ("python3", "プログラミング", "gpu", "GPU python3"):
            assert found(index, query) == ["a"], query


@pytest.mark.parametrize("text", ["ünïcødé", "각한국", "ṩ", "йога"])
def test_words_are_found_however_their_marks_are_written(tmp_path: Path, text: str) -> None:
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    for number, stored in enumerate(forms):
        with Index.create(tmp_path / f"{number}", model=FakeEmbedder(), language="none") as index:
            index.add([{"_id": "a", "text": stored}])
            assert [found(index, query) for query in forms] == [["a"], ["a"]]


def test_what_is_between_words_is_never_one(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add(
            [
                {
                    "_id": "a",
                    "text": "snake_case, “quoted” e-mail; C++ 3.14 \U0001f600 ٣٤ don't ½ x²",
                }
            ]
        )
        for query in ("snake", "case", "quoted", "mail", "14", "٣٤", "don"):
            assert found(index, query) == ["a"], query
        for query in ("\U0001f600", "++", "_", "...", "\u200b"):
            assert found(index, query) == [], query


def test_titles_and_headings_are_words_too(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add(
            [
                {"_id": "a", "title": "Anodes", "text": "zinc"},
                {"_id": "b", "title": "Zinc", "text": ""},
            ]
        )
        assert found(index, "anodes") == ["a"]
        assert set(found(index, "zinc")) == {"a", "b"}
        assert found(index, "anodes", unit="passage") == [], "a title belongs to the document"


def test_a_long_text_and_a_long_word_are_found(tmp_path: Path) -> None:
    with Index.create(
        tmp_path / "ix", model=FakeEmbedder(split_size=1000), language="none"
    ) as index:
        index.add(
            [
                {"_id": "a", "text": " ".join(f"w{i}" for i in range(20_000))},
                {"_id": "b", "text": "x" * 10_000},
            ]
        )
        assert found(index, "w19999") == ["a"]
        assert found(index, "x" * 10_000) == ["b"]
        assert found(index, "x" * 9_999) == []


def test_a_query_gives_each_word_once_without_stop_words() -> None:
    rules = language("english")
    assert rules.words("the 书面通知 of Zürich ZÜRICH") == [
        "书面",
        "面通",
        "通知",
        "zurich",
    ]
    assert rules.second_words("the 书面通知 of Zürich ZÜRICH") == ["zürich"]
    assert rules.words("the of") == ["the", "of"]
    assert rules.words("?! ...") == []
    assert rules.stored("a 书面通b") == " a 书面 面通 b 书 面 通 "


def test_made_up_words_do_not_fill_the_memory() -> None:
    language.cache_clear()
    rules = language("english")
    long = [f"{number:05}{'running' * 1000}" for number in range(3000)]
    tracemalloc.start()
    try:
        for word in long:
            assert rules.words(word) == [word.removesuffix("ning")]
        for number in range(60_000):
            rules.words(f"w{number}ing")
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 12 << 20
    assert rules.words("running runs") == ["run"]


def test_texts_of_ascii_are_split_as_all_others_are() -> None:
    rules = language("english")
    for text in (
        "".join(f"running{chr(code)}Dogs " for code in range(128)),
        "snake_case a-b 3.14\x1ccut\x0bhere",
        "..._",
    ):
        words, beside, forms = rules.split(f"{text} Ω")
        assert rules.split(text) == (
            words.removesuffix("ω").strip(),
            beside,
            forms.removesuffix("ω").strip(),
        )


@pytest.mark.parametrize("name", ["english", "greek", "turkish", "none"])
def test_words_of_many_texts_and_their_passages_are_those_of_each_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts inside words, marks, overlaps, long texts that are read part by part, and texts, titles
    and passages without words make no difference.
    """
    rng, rules = random.Random(name), language(name)
    drawn = [
        "running",
        "don't",
        "Ship-shape",
        "\u039f\u0394\u039f\u03a3",
        "\u03a3'\u0391",
        "cafe\u0301",
        "\u0301",
    ]
    drawn += [
        "東京都",
        "한국",
        "\ufb01n",
        "2.5",
        " ",
        "\n\n",
        "\u00a0",
        "\u2014",
        "parseHTTPHeader",
        "été",
        "İ",
    ]
    drawn += map(chr, range(128))
    texts = []
    for _ in range(250):
        text = "".join(
            rng.choice(drawn) + rng.choice(["", " ", "  ", "\n"]) for _ in range(rng.randrange(12))
        )
        edges = [
            0,
            len(text),
            *(at for at in range(len(text)) if rng.random() < 0.5 or text[at].isspace()),
        ]
        spans = [sorted(rng.choices(edges, k=2)) for _ in range(rng.randrange(4))]
        title, headings = rng.choice(["", text[:9]]), rng.choices(["", *drawn], k=len(spans))
        path, name = rng.choice(drawn), rng.choice([title, "été FY2018 FY 2018"])
        naming = (path, name, rng.choice([text, text[:9]]))
        texts.append((title, text, np.array(spans).reshape(-1, 2), headings, naming))
    whole = [rules.stored(f"{title}\n{text}") for title, text, *_ in texts]
    forms = [spaced(rules.split(f"{title}\n{text}")[2]) for title, text, *_ in texts]
    parts = [
        rules.stored(f"{heading}\n{text[start:stop]}")
        for _, text, spans, headings, _ in texts
        for (start, stop), heading in zip(spans.tolist(), headings, strict=True)
    ]
    copies = [copy_digest(text) for _, text, *_ in texts]
    passage_copies = [
        copy_digest(text[start:stop])
        for _, text, spans, _, _ in texts
        for start, stop in spans.tolist()
    ]

    def once(text: str) -> str:
        return spaced(" ".join(dict.fromkeys(rules.stored(text).split())))

    titled = [f"{title}\n{text}" for title, text, *_ in texts]
    assert different_words(rules, titled).to_pylist() == list(map(once, titled))
    names = [once(f"{path}\n{name}") for *_, (path, name, _) in texts]
    called = [SEPARATOR.join(map(once, naming)) for *_, naming in texts]
    expected = [whole, parts, forms, copies, passage_copies, names, called]
    assert [column.to_pylist() for column in text_columns(rules, texts)] == expected
    for text, one, written in zip(texts, whole, forms, strict=True):
        alone = text_columns(rules, [text])
        assert (alone.words.to_pylist(), alone.forms.to_pylist()) == ([one], [written])
    monkeypatch.setattr(columns, "LONG_TEXT_CHARACTERS", 3)
    assert [column.to_pylist() for column in text_columns(rules, texts)] == expected


def test_a_word_of_several_passages_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlapping passages that begin and end beside blanks: each different word between blanks is
    split once, wherever it stands.
    """
    rules, splits = language("none"), record_calls(monkeypatch, columns, "runs_of")
    text = "één twéé één viér fîve"
    spans = np.array([[0, 13], [9, 17], [18, 22]])
    columns_of_text = text_columns(rules, [("", text, spans, ["één"] * 3, ("één", "", text))])
    expected = [rules.stored(f"één {text[start:stop]}") for start, stop in spans.tolist()]
    assert columns_of_text.passage_words.to_pylist() == expected
    assert [call["text"] for call in splits] == ["één", "twéé", "viér", "fîve"]


@pytest.mark.parametrize("name", ["english", "turkish", "none"])
@pytest.mark.parametrize(
    ("stored", "query"),
    [
        ("தமிழ் மொழி அழகானது", "மொழி"),
        ("हिन्दी में लिखा", "हिन्दी"),
        ("বাংলা ভাষার বই", "ভাষার"),
        ("ܫܠܳܡܳܐ ܥܰܡܟ݂ܽܘܢ", "ܫܠܡܐ"),
        ("שָׁלוֹם עֲלֵיכֶם", "שלום"),
        ("שלום", "שָׁלוֹם"),
        ("مُحَمَّدٌ يقرأ", "محمد"),
        ("\ufee3\ufea4\ufee4\ufeaa", "محمد"),
        ("كتـــاب", "كتاب"),
        ("ភាសាខ្មែរជាភាសាផ្លូវការ", "ខ្មែរ"),
        ("ພາສາລາວເປັນພາສາ", "ລາວ"),
        ("မြန်မာဘာသာစကား", "ဘာသာ"),
        ("ภาษาไทย\u200bเป็นภาษาราชการ", "ไทยเป็น"),
        ("Ｔｅｎａｎｔ １２３", "tenant"),
        ("ｶﾞｲﾄﾞﾌﾞｯｸ", "ガイドブック"),
        (unicodedata.normalize("NFD", "Tiếng Việt ở Đà Nẵng"), "Việt"),
        ("Tiếng Việt ở Đà Nẵng", "da nang"),
        ("Ver\u00adord\u00adnung", "Verordnung"),
        ("e\ufb03cient", "efficient"),
        ("Die Straße nach Gießen", "strasse"),
        ("STRASSE", "straße"),
        ("Łódź i Tromsø", "lodz tromso"),
        ("kapı İZMİR ışık", "izmir"),
        ("IŞIK", "ISIK"),
        ("ΟΔΟΣ", "οδός"),
        ("ещё", "еще"),
        ("parseHTTPHeader", "header"),
        ("camelCase", "case"),
        ("camelCase", "CAMELCASE"),
        ("10.1234/x-1E5", "1e5"),
        ("10.1234/x", "1234"),
        ("AB-C77", "c77"),
        ("foo_bar", "foo_bar"),
        ("می\u200cخواهم", "میخواهم"),
        ("کتاب فارسی", "\u0643\u062a\u0627\u0628"),
        ("NOVA™ valves", "nova"),
        ("the tenant² pays", "tenant"),
        ("10 km² of land", "km2"),
        ("комп\u02bcютер", "комп'ютер"),
        ("Hawai\u02bbi", "Hawai\u2019i"),
    ],
)
def test_words_of_any_script_are_found_as_they_are_written(
    name: str, stored: str, query: str
) -> None:
    rules = language(name)
    held = rules.stored(stored).split()
    asked = [*rules.words(query), *rules.second_words(query)]
    assert set(asked) & set(held)
    marked = rules.finder(set(asked))(stored)
    assert marked
    assert all(0 <= each.start < each.stop <= len(stored) for each in marked)


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ("Strasse", True),
        ("Mueller", True),
        ("Muller", True),
        ("Mietverträge", True),
        ("Vertrag", False),  # a part of a compound
    ],
)
def test_german_is_found_in_other_spellings_but_not_by_parts_of_compounds(
    query: str, is_found: bool
) -> None:
    rules = language("german")
    stored = set(rules.stored("Der Mietvertrag liegt bei Müller in der Straße").split())
    asked = {*rules.words(query), *rules.second_words(query)}
    assert bool(asked & stored) == is_found


def test_letters_with_other_marks_are_other_letters() -> None:
    rules = language("none")
    for one, other in (
        ("йод", "иод"),
        ("が", "か"),
        ("हिन्दी", "दिन"),
        ("कि", "की"),
        ("ñandú x", "y"),
    ):
        assert not set(rules.words(one)) & set(rules.stored(other).split())


def test_turkish_has_two_letters_i() -> None:
    assert language("turkish").words("KAPI") == language("turkish").words("kapı")
    assert "ispanya" in language("turkish").stored("İSPANYA").split()


@pytest.mark.parametrize("name", ["english", "french", "spanish", "german", "turkish", "none"])
def test_a_word_is_found_without_its_accents_and_the_exact_one_first(
    tmp_path: Path, name: str
) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), language=name) as index:
        index.add(
            [
                {"_id": "plain", "text": "un resume noir"},
                {"_id": "accents", "text": "un résumé noir"},
            ]
        )
        index.add([{"_id": "other", "text": "zzz qqq"}])
        assert found(index, "résumé") == ["accents", "plain"]
        assert found(index, "resume") == ["plain", "accents"]


RULES = [
    "car, automobile, motor car  # or c#, by others",
    "k8s => kubernetes, container cluster",
    "# said",
    "wings",
]
TEXTS = {
    "auto": "An automobile is parked.",
    "motor": "The motor car of the year.",
    "car": "Two cars.",
    "k8s": "A k8s of its own.",
    "kube": "Kubernetes runs it.",
    "cluster": "A container cluster.",
    "wings": "The band Wings played.",
    "wing": "The wing of a bird, winged.",
}


def test_synonyms_are_looked_for_and_protected_words_are_not_stemmed(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("\n".join(RULES), encoding="utf-8")
    rows = [{"_id": name, "text": text} for name, text in TEXTS.items()]
    with Index.create(
        tmp_path / "ix", model=FakeEmbedder(), synonyms=tmp_path / "words.txt"
    ) as index:
        index.add(rows)
        for query in ("cars", "an automobile", "the motor car"):
            assert set(found(index, query)) == {"auto", "motor", "car"}, query
        assert set(found(index, "k8s")) == {"kube", "cluster"}
        assert found(index, "kubernetes") == ["kube"]
        assert (found(index, "Wings"), found(index, "wing")) == (["wings"], ["wing"])
        (hit,) = [hit for hit in index.search("car", mode="lexical") if hit.id == "auto"]
        assert [hit.text[a:b] for a, b in hit.highlights] == ["automobile"]
        assert problems_of(index.path) == []
    build_index(rows, tmp_path / "plain", model=FakeEmbedder())
    with Retriever.load(tmp_path / "plain", model=FakeEmbedder()) as plain:
        assert found(plain, "automobile") == ["auto"]


@pytest.mark.parametrize(
    ("name", "lines", "query", "words"),
    [
        ("none", ["a1 => b1", "b1 => c1"], "a1", ["b1"]),  # one step: no synonyms of synonyms
        ("none", ["a1 => b1", "b1 => a1"], "a1 b1", ["b1", "a1"]),
        ("none", ["x1, y1", "y1, z1"], "y1", ["y1", "x1", "z1"]),
        ("none", ["js => javascript", "es => javascript"], "js es", ["javascript"]),
        ("english", ["motor car, auto"], "a motor car", ["motor", "car", "auto"]),
        ("english", ["motor car, auto"], "car motor", ["car", "motor"]),
        ("english", ["the who => band"], "the who", ["band"]),
        ("english", ["getUserName, login"], "getusername", ["getusernam", "login"]),
        ("russian", ["машина, автомобиль"], "машины", ["машин", "автомобил"]),
        ("none", ["東京, 江戸"], "東京", ["東京", "江戸"]),
        ("arabic", ["سيارة, عربة"], "سَيَّارَة", ["سيار", "عرب"]),
        ("german", ["straße, weg"], "STRASSE", ["strass", "weg"]),
        ("turkish", ["İzmir, Smyrna"], "izmir", ["izmir", "smyrna"]),
        ("none", ["\ufb01ne, good"], "fine", ["fine", "good"]),
    ],
)
def test_synonyms_of_every_kind(name: str, lines: list[str], query: str, words: list[str]) -> None:
    assert language(name, synonyms=read_synonyms(lines)).words(query) == words


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("+car", {"car", "motor"}),
        ("car -automobile", {"car", "motor"}),
        ('"motor car"', {"motor"}),
        ("automobile -car*", {"auto"}),
    ],
)
def test_a_condition_is_of_the_word_and_not_of_its_synonyms(
    tmp_path: Path, query: str, wanted: set[str]
) -> None:
    rows = [{"_id": name, "text": text} for name, text in TEXTS.items()]
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), synonyms=RULES) as index:
        index.add(rows)
        assert {hit.id for hit in index.search(query, 10, mode="lexical", operators=True)} == wanted


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a => "], "line 1: 'a =>': write it as"),
        (["car,", "x"], "line 1: 'car,': a word is missing before or after a comma"),
        (["a, b", "two words"], "line 2: 'two words': a protected word is one word"),
        ("/no/such/file", "cannot be read"),
        ([f"a{i}, b{i}" for i in range(10_001)], "at most 10,000"),
    ],
)
def test_synonyms_that_say_nothing_are_named_by_their_line(
    tmp_path: Path, lines: list[str] | str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        build_index(
            [{"_id": "a", "text": "b"}], tmp_path / "ix", model=FakeEmbedder(), synonyms=lines
        )


def test_accents_can_be_kept_apart(tmp_path: Path) -> None:
    rows = [{"_id": "plain", "text": "ma"}, {"_id": "accents", "text": "mạ"}]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder(), language="none", keep_accents=True)
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as reader:
        assert (found(reader, "ma"), found(reader, unicodedata.normalize("NFD", "mạ"))) == (
            ["plain"],
            ["accents"],
        )


def test_stored_words_are_found_whole_whatever_their_length_and_script() -> None:
    rng = random.Random(5)
    known = ["".join(rng.choice("abé本") for _ in range(rng.randint(1, 6))) for _ in range(60)]
    known += [
        "agreement",
        "agreements",
        "agreed",
        "a" * 16,
        "a" * 17,
        "a" * 24,
        "abcdefgh",
        "abcdefghi",
    ]
    texts = [rng.choices(known, k=rng.randint(0, 40)) for _ in range(80)]
    stored = [f" {' '.join(text)} ".encode() if text else b"" for text in texts]
    asked = [*known[::2], "agree", "a" * 15, "abcdefg"]
    held = held_words(stored, asked)
    assert held.any()
    assert held.tolist() == [[word in text for word in asked] for text in texts]
    assert held_words([], ["a"]).shape == (0, 1)
    assert held_words([b""], ["a"]).tolist() == [[False]]
