# ruff: noqa: RUF001  # letters of many scripts are what these tests are about
"""How well a model knows a text: what its vocabulary spells it has not learned."""

from __future__ import annotations

import numpy as np
import pytest

from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.text.knowledge import Knowledge

READ = [
    "The engine of the steam locomotive is fired with coal, and water is taken every forty miles.",
    "I have a cat. A dog, I do not.",
    "Der Lokführer prüft vor der Abfahrt die Bremsen und den Wasserstand im Kessel der Lokomotive.",
    "El maquinista revisa los frenos y el nivel del agua antes de salir de la estación.",
    "1,234.50 + 17 = 1251.5 (2024-11-05)",
    "",
]
NOT_READ = [
    "Перед отправлением машинист проверяет тормоза и уровень воды в котле.",
    "발차 전에 기관사는 제동 장치와 보일러의 수위를 확인한다.",
    "发车前，司机检查制动器和锅炉水位。",
    "يفحص السائق المكابح ومستوى الماء في الغلاية قبل المغادرة",
    "ก่อนออกเดินทางคนขับตรวจเบรกและระดับน้ำในหม้อน้ำ",
    "प्रस्थान से पहले चालक ब्रेक और बॉयलर में पानी का स्तर जाँचता है।",
    "Πριν από την αναχώρηση ο μηχανοδηγός ελέγχει τα φρένα και τη στάθμη του νερού.",
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.load()


@pytest.mark.parametrize("text", READ)
def test_vectors_of_what_the_model_reads_weigh_in_full(embedder: Embedder, text: str) -> None:
    assert embedder.query_weights([text])[0] > 0.9


MENTIONS = [
    "The Rhine (Ρήνος in Greek, Рейн in Russian, راين in Arabic) rises in the Swiss Alps, runs "
    "through Lake Constance, and reaches the sea behind Rotterdam after 1,230 kilometres.",
    "The Loch (Scottish Gaelic: [ˈɫ̪ɔx]; English /lɒx, lɒk/) is a word for a lake or a sea inlet in "
    "Scotland, and it is found in the names of several hundred of them.",
    "Kyoto (京都市, Kyōto-shi) was the capital of Japan for more than a thousand years, and its "
    "old temples, gardens and wooden houses outlived the wars.",
]


@pytest.mark.parametrize("text", MENTIONS)
def test_names_in_other_letters_take_nothing_from_an_english_text(
    embedder: Embedder, text: str
) -> None:
    assert embedder.query_weights([text])[0] == 1


def test_half_a_text_in_other_letters_takes_its_weight_away(embedder: Embedder) -> None:
    weights = embedder.query_weights([f"{READ[0]} {NOT_READ[0][:n]}" for n in (12, 40, 69)])
    assert weights[0] == 1
    assert 0.2 < weights[1] < 0.95
    assert weights[2] < weights[1]


@pytest.mark.parametrize("text", NOT_READ)
def test_vectors_of_what_it_spells_weigh_nothing(embedder: Embedder, text: str) -> None:
    assert embedder.query_weights([text])[0] < 0.1


def test_each_passage_has_a_weight_of_its_own(embedder: Embedder) -> None:
    text = "\n\n".join([" ".join(READ[:1] * 20), " ".join(NOT_READ[:1] * 12)])
    (encoded,) = embedder.encode_documents([("Brakes\n", text)])
    assert encoded.weights is not None
    assert len(encoded.weights) == len(encoded.spans)
    middle = text.index("\n\n")
    english = encoded.spans[:, 1] <= middle + 2
    assert (encoded.weights[english] == 1).all()
    assert (encoded.weights[~english & (encoded.spans[:, 0] >= middle)] == 0).all()


def test_a_letter_is_known_where_it_is_a_word_or_its_script_was_learned() -> None:
    offsets = np.array([[0, 1], [1, 2]])
    ids = np.array([1, 2])
    assert Knowledge(["", "水", "车"]).weight("水车", ids, offsets) == 0
    assert Knowledge(["", "水", "车", "水车", "车站"]).weight("水车", ids, offsets) == 1
    apart = np.array([[0, 1], [2, 3]])
    assert Knowledge(["", "a", "i"]).weight("a i", ids, apart) == 1
    assert Knowledge(["", "a", "i"]).weight("ai", ids, offsets) == 0


def test_marks_that_no_token_holds_are_not_read() -> None:
    text = "क\u0941क\u0941"  # the normalizer drops the marks of vowels
    known = Knowledge(["", "क"])
    assert known.weight(text, np.array([1, 1]), np.array([[0, 1], [2, 3]])) == 0


def test_a_long_text_is_weighed_part_by_part(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(READ + NOT_READ + READ)
    ids, offsets = embedder.tokenizer.encode(text)
    spans = np.array([(start, start + 37) for start in range(0, len(text), 29)])
    whole = embedder.tokenizer.knowledge.weights(text, ids, offsets, spans)
    assert whole.min() < 0.1 < 0.9 < whole.max()
    for count in (1, 7, 100):
        monkeypatch.setattr("aveyb_retrieval.encoder.text.knowledge._TOKENS_AT_ONCE", count)
        parts = embedder.tokenizer.knowledge.weights(text, ids, offsets, spans)
        assert np.array_equal(parts, whole)
