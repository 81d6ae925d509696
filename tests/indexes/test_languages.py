# ruff: noqa: RUF001  # letters of many scripts are what these tests are about
"""Each document's words by the rules of its own language, and vectors of what a model does not read
weigh nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.changes.language_notices import describe_languages
from aveyb_retrieval.indexes.search.fusion import fuse_scores
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store import languages
from aveyb_retrieval.indexes.store.languages import DocumentLanguages, SeveralLanguages
from tests import one_change
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

GERMAN = (
    "Die Brücken der Stadt wurden nach dem Hochwasser neu gebaut. Zwei von ihnen sind heute für"
    " Fahrzeuge gesperrt, weil die Pfeiler im Fluss unterspült waren und die Reparatur dem Rat zu"
    " teuer war. Fußgänger dürfen sie weiter benutzen."
)
RUSSIAN = (
    "Мосты города были построены заново после наводнения. Два из них сегодня закрыты для машин,"
    " потому что опоры в реке были размыты, а ремонт показался совету слишком дорогим. Пешеходы"
    " могут по-прежнему пользоваться ими каждый день."
)
CHINESE = "洪水过后，城市的桥梁重新修建。其中两座今天禁止车辆通行，因为河中的桥墩被冲刷。" * 6
ENGLISH = (
    "The bridges of the city were built again after the flood. Two of them are closed to vehicles"
    " today, because the piers in the river had been washed out and the council found the repair"
    " too expensive. People on foot may still use them."
)
# "ada", "dan" and "kita" are stop words of Indonesian
NAMES_ALONE = ["Hi Ada", "Ada, Bob", "Lunch menu, Dan", "Data per kita", ""]
TABLE = "Bolt M8 40 zinc 12.50; Nut M8 zinc 3.10; Washer M8 steel 1.05; Screw M6 30 inox 9.99; " * 4


def notices(*arguments: object, **options: object) -> str:
    report = build_index(*arguments, **options)  # type: ignore[arg-type]
    return " ".join(notice.reason for notice in report.notices)


def test_languages_are_told_apart() -> None:
    assert DocumentLanguages().of([GERMAN, RUSSIAN, CHINESE, ENGLISH]) == ["de", "ru", "zh", "en"]


@pytest.mark.parametrize("text", [TABLE, "Bridge 7", "", "def f(x): return x + 1\n" * 20])
def test_what_is_no_prose_takes_the_main_language(text: str) -> None:
    assert DocumentLanguages({"en": 10}).of([text, ENGLISH]) == ["en", "en"]


def test_prose_and_tables_in_the_main_language_load_no_identifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def identify(text: str) -> tuple[str, float]:
        raise AssertionError(f"identified: {text}")

    monkeypatch.setattr(languages, "identify", identify)
    short = [f"Bridge {number} is closed to vehicles" for number in range(50)]
    texts = [ENGLISH, TABLE, *short, ""]
    assert DocumentLanguages().of(texts) == ["en"] * len(texts)


def test_short_texts_together_say_what_they_are_in() -> None:
    short = [part.strip() for part in GERMAN.split(".") if part.strip()]
    assert all(len(text) < 200 for text in short)
    assert DocumentLanguages().of(short * 3) == ["de"] * len(short) * 3


@pytest.mark.parametrize(
    "texts",
    [
        NAMES_ALONE,
        ["Hi Ada", " " * 300],
        ["Der Mieter zahlt die Miete."],
        ["Привет"],
        ["日本語の文書", "洪水过后"],
    ],
)
def test_too_little_text_has_no_language(texts: list[str], tmp_path: Path) -> None:
    assert DocumentLanguages().of(texts) == ["en"] * len(texts)
    documents = [{"_id": str(number), "text": text} for number, text in enumerate(texts)]
    assert "languages:" not in notices(documents, tmp_path / "index", model=FakeEmbedder())


@pytest.mark.parametrize(("prose", "code"), [(ENGLISH, "en"), (GERMAN, "de")])
def test_few_short_texts_are_looked_at_together(prose: str, code: str) -> None:
    texts = NAMES_ALONE + [part.strip() for part in prose.split(".")]
    assert DocumentLanguages().of(texts) == [code] * len(texts)


def test_each_document_has_its_own_stemmer_and_stop_words(tmp_path: Path) -> None:
    documents = [
        {"_id": name, "text": text}
        for name, text in (("de", GERMAN), ("ru", RUSSIAN), ("zh", CHINESE), ("en", ENGLISH))
    ]
    build_index(documents, tmp_path / "index")
    snapshot = Snapshot.open(tmp_path / "index")
    assert set(snapshot.languages) == {"de", "ru", "zh", "en"}
    assert isinstance(snapshot.language, SeveralLanguages)
    retriever = Retriever.load(tmp_path / "index")
    for question, name in (
        ("Welche Brücke wurde gesperrt?", "de"),
        ("Какой мост закрыт для машины?", "ru"),
        ("哪些桥梁禁止通行", "zh"),
        ("Which bridge was closed to a vehicle?", "en"),
    ):
        for mode in ("lexical", "hybrid"):
            assert retriever.search(question, k=1, mode=mode)[0].id == name  # type: ignore[arg-type]
    (hit,) = retriever.search("Какие мосты закрыты?", k=1)
    assert any("мосты" in hit.text[start:stop].lower() for start, stop in hit.highlights)


def test_a_new_document_may_bring_a_language(tmp_path: Path) -> None:
    build_index([{"_id": "en", "text": ENGLISH}], tmp_path / "index")
    assert Snapshot.open(tmp_path / "index").language.name == "english"
    one_change.upsert([{"_id": "de", "text": GERMAN}], tmp_path / "index")
    hits = Retriever.load(tmp_path / "index").search("gesperrte Brücke", k=1, mode="lexical")
    assert hits[0].id == "de"


def test_vectors_of_what_the_model_does_not_read_weigh_nothing(tmp_path: Path) -> None:
    build_index(
        [{"_id": "ru", "text": RUSSIAN}, {"_id": "en", "text": ENGLISH}], tmp_path / "index"
    )
    snapshot = Snapshot.open(tmp_path / "index")
    numbers = snapshot.matching(snapshot.select({"_id": "ru"}))  # type: ignore[arg-type]
    assert snapshot.vector_weights("document", numbers) == pytest.approx([0])
    english = snapshot.matching(snapshot.select({"_id": "en"}))  # type: ignore[arg-type]
    assert snapshot.vector_weights("document", english) == pytest.approx([1])


def test_a_fusion_of_what_is_not_known_is_that_of_words() -> None:
    dense, words = np.array([0.9, 0.5, 0.4]), np.array([np.nan, 3.0, 6.0])
    options = {"background": 0.2, "weight": 0.5}
    fused = fuse_scores(dense, words, known=np.zeros(3), **options)
    assert fused.tolist() == [0, 0.25, 0.5]
    in_full = fuse_scores(dense, words, **options)
    assert np.array_equal(in_full, fuse_scores(dense, words, known=np.ones(3), **options))
    half = fuse_scores(dense, words, known=np.array([0.5, 1, 1]), **options)
    assert half[0] == pytest.approx(in_full[0] / 2)
    assert half[2] == in_full[2]


def test_a_build_says_which_languages_there_are_and_what_is_not_known(tmp_path: Path) -> None:
    said = notices([{"text": RUSSIAN}, {"text": RUSSIAN[::-1] + RUSSIAN}], tmp_path / "ru")
    assert "Russian 100%" in said
    assert "do not know 100% of the passages" in said
    assert "--model languages" in said
    assert "--language" in said
    said = notices([{"text": GERMAN}, {"text": ENGLISH}], tmp_path / "de")
    assert "English 50%" in said
    assert "German 50%" in said
    assert "do not know" not in said


def test_what_is_not_known_is_reported_of_too_little_text_too(tmp_path: Path) -> None:
    said = notices([{"text": "Мосты города закрыты"}], tmp_path / "index")
    assert said.startswith("the vectors of aveyb-base-en-v2 do not know 100% of the passages")
    assert "--language" not in said
    said = notices([{"text": RUSSIAN}], tmp_path / "one", language="russian")
    assert said.startswith("languages: one for all, as --language says; the vectors of")


def test_a_build_in_english_says_nothing(tmp_path: Path) -> None:
    documents = [{"text": text} for text in (ENGLISH, TABLE, "Bridge 7", ENGLISH.upper())]
    assert notices(documents, tmp_path / "en") == ""
    assert describe_languages({"en": 990, "de": 10}) == ""


def test_one_language_for_all_is_kept_to(tmp_path: Path) -> None:
    build_index([{"text": RUSSIAN}, {"text": GERMAN}], tmp_path / "index", language="german")
    snapshot = Snapshot.open(tmp_path / "index")
    assert snapshot.language.name == "german"
    assert snapshot.languages == ()


def test_columns_of_several_languages_stay_in_order(tmp_path: Path) -> None:
    texts = [GERMAN, ENGLISH, RUSSIAN * 8, GERMAN[::-1] + GERMAN, ENGLISH * 9, CHINESE]
    build_index([{"_id": str(i), "text": text} for i, text in enumerate(texts)], tmp_path / "i")
    from aveyb_retrieval import verify_index

    verify_index(tmp_path / "i")
    assert np.all(np.diff(Snapshot.open(tmp_path / "i").tables.numbers("document")) > 0)


def test_texts_that_are_no_prose_have_the_rules_of_english() -> None:
    rows = [f"word{i} word{i * 7 % 31} part_no cases-case {i:08x}" * 8 for i in range(20)]
    assert set(DocumentLanguages().of(rows)) == {"en"}
    assert set(DocumentLanguages().of([row[:60] for row in rows])) == {"en"}
