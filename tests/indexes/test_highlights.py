"""What matched: the query's words and the best sentence, as characters of the text, whatever the
script or spelling.
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval import Hit, Index
from aveyb_retrieval.indexes.store.words import language
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

TEXT = (
    "The pump stands still. Close the valve, then the valves of the filter. A filter is a filter is"
    " a filter."
)


def opened(path: Path, text: str = TEXT, **options: Any) -> Index:
    index = Index.create(path, model=FakeEmbedder(split_size=40), **options)
    index.add([{"_id": "a", "text": text}, {"_id": "b", "text": "nothing of the kind"}])
    return index


def marked(hit: Hit) -> list[str]:
    assert list(hit.highlights) == sorted(hit.highlights)
    return [hit.text[start:stop] for start, stop in hit.highlights]


def sentence(hit: Hit) -> str | None:
    return hit.text[slice(*hit.best_sentence)] if hit.best_sentence else None


@pytest.mark.parametrize("unit", ["document", "passage"])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_hit_says_which_words_matched_and_which_sentence_is_best(
    tmp_path: Path, unit: Any, mode: Any
) -> None:
    with opened(tmp_path / "ix") as index:
        hits = {hit.id: hit for hit in index.search("the valve of a filter", unit=unit, mode=mode)}
        assert marked(hits["a"]) == ["valve", "valves", "filter", "filter", "filter", "filter"]
        assert sentence(hits["a"]) == "Close the valve, then the valves of the filter."
        told = json.loads(json.dumps(hits["a"].to_dict()))
        assert told["highlights"][0] == [TEXT.index("valve"), TEXT.index("valve") + 5]
        assert told["best_sentence"] == [TEXT.index("Close"), TEXT.index(" A filter")]
        if mode != "lexical":
            assert (hits["b"].highlights, hits["b"].best_sentence) == ((), None)


def test_words_are_marked_in_what_is_shown_and_nowhere_else(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder(split_size=8)) as index:
        index.add([{"_id": "a", "text": "zinc " + "word " * 40 + "zinc anode"}])
        (best,) = index.search("zinc anode", 1, unit="passage")
        assert marked(best) == ["zinc", "anode"]
        assert [span[0] >= best.passages[0].span[0] for span in best.highlights] == [True, True]
        (around,) = index.search("zinc anode", 1, unit="passage", context=9)
        assert marked(around) == ["zinc", "zinc", "anode"]
        (several,) = index.search("zinc anode", 1, passages=10)
        assert marked(several) == ["zinc", "zinc", "anode"]


def test_a_document_without_passages_is_marked_at_its_beginning(tmp_path: Path) -> None:
    with opened(tmp_path / "ix", f"zinc {'word ' * 5000} zinc", granularity="document") as index:
        hit, *_ = index.search("zinc", mode="lexical")
        assert (marked(hit), hit.best_sentence) == (["zinc"], None)


def test_a_vector_has_no_words(tmp_path: Path) -> None:
    with opened(tmp_path / "ix") as index:
        ((hit, *_),) = index.search_vectors(FakeEmbedder().encode_queries(["valve"]))
        assert (hit.highlights, hit.best_sentence) == ((), None)


@pytest.mark.parametrize(
    ("text", "query", "words"),
    [
        ("甲方应当在书面通知解除本合同。", "书面通知", ["书面通知"]),
        ("Python3プログラミングGPU", "gpu プログラミング", ["プログラミング", "GPU"]),
        (
            unicodedata.normalize("NFD", "ein CAFÉ, zwei Cafés"),
            "café",
            ["CAFE\u0301", "Cafe\u0301s"],
        ),
        (
            unicodedata.normalize("NFD", "그는 한국어 문서를"),
            "한국어",
            [unicodedata.normalize("NFD", "한국어")],
        ),
        ("DİL \U0001f600 dil", "dil", ["DİL", "dil"]),
        ("snake_case <b>cases</b>", "case", ["case", "cases"]),
    ],
)
def test_words_are_marked_as_they_are_written(
    tmp_path: Path, text: str, query: str, words: list[str]
) -> None:
    with opened(tmp_path / "ix", text) as index:
        assert marked(index.search(query, 1, mode="lexical")[0]) == words


TEXTS = st.text(
    st.sampled_from("aB\u0301İßé \u3042京都각\u1100\u1161_-1\u0938\u094d\U0001f600\u03a3\u03c3ẞǅÅ"),
    max_size=20,
)


@settings(deadline=None)
@given(TEXTS)
def test_every_stored_word_is_found_where_it_is_written(text: str) -> None:
    rules = language("none")
    found = rules.finder(set(rules.stored(text).split()))(text)
    assert sorted(each.word for each in found) == sorted(rules.stored(text).split())
    assert all(0 <= each.start < each.stop <= len(text) for each in found)
    if text.isascii():
        assert all(text[each.start : each.stop].lower() == each.word for each in found)
