"""Words that must be there: conditions in every mode, of documents and of passages, in
any script.
"""

from __future__ import annotations

import pickle
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.errors import ConfigError, InputError
from tests.indexes.fake import FakeEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = {
    "pump": "The pump house is old. Managers replaced the bearing.",
    "house": "A house with a pump. The management keeps COVID-19 rules, café and naïveté.",
    "ship": "The ship's hull was repaired in 1998; studies of corrosion followed.",
    "study": "One study of bearings in ships, and the deposit of HTTPServer logs.",
    "cjk": "甲方应当在书面通知后解除本合同。",
    "thai": "ภาษาไทยเป็นภาษาราชการ",
}


@pytest.fixture(scope="module", params=["english", "none"])
def retriever(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Retriever]:
    place = tmp_path_factory.mktemp("operators") / request.param
    rows = [{"_id": name, "text": text, "kind": "note"} for name, text in TEXTS.items()]
    build_index(rows, place, model=FakeEmbedder(split_size=100), language=request.param)
    with Retriever.load(place, model=FakeEmbedder(split_size=100)) as opened:
        yield opened


def found(opened: Retriever, query: str, **options: Any) -> set[str]:
    return {hit.id for hit in opened.search(query, 10, operators=True, **options)}


CASES = [
    ('"pump house"', {"pump"}),
    ('+pump -"pump house"', {"house"}),
    ("\u201cship\u2019s hull\u201d", {"ship"}),
    ("+bearing* -manag*", {"study"}),
    ('is there a ("pump house")?', {"pump"}),
    ("studi*, or not?", {"ship"}),
    ("managem*", {"house"}),
    ("manage*", {"pump", "house"}),
    ("studi*", {"ship"}),
    ("deposti~", {"study"}),
    ("managment~", {"house"}),
    ("mangament~", {"house"}),
    ("pmup~", {"pump", "house"}),
    ("+covid-19", {"house"}),
    ("caf*", {"house"}),
    ("+cafe", {"house"}),
    ("+CAF\u00c9", {"house"}),
    ("naivet\u00ea~", {"house"}),
    ("+书面通知", {"cjk"}),
    ('"面书"', set()),
    ("通知*", {"cjk"}),
    ("+ภาษา -ไทย", set()),
    ("\uff0bราชการ", {"thai"}),
    ("+pump +hull", set()),
    ('"in ships"', {"study"}),
]


@pytest.mark.parametrize("mode", ["hybrid", "lexical", "dense"])
@pytest.mark.parametrize(("query", "wanted"), CASES)
def test_conditions_limit_what_any_mode_finds(
    retriever: Retriever, query: str, wanted: set[str], mode: Any
) -> None:
    for unit in ("document", "passage"):
        assert found(retriever, query, mode=mode, unit=unit) == wanted


def test_plain_words_stay_the_question_and_filters_go_with_conditions(retriever: Retriever) -> None:
    assert [hit.id for hit in retriever.search("hull +ship*", 1, operators=True)] == ["ship"]
    assert found(retriever, "bearing* hull", filter={"_id": "study"}) == {"study"}
    assert found(retriever, "bearing* hull", ids=["ship"]) == set()
    assert found(retriever, "hull -pump", mode="lexical") == {"ship"}
    assert len(found(retriever, "hull -pump")) == len(TEXTS) - 2


def test_without_operators_signs_are_text(retriever: Retriever) -> None:
    assert retriever.search('hull -pump "pump house"', 10, mode="lexical")
    assert {hit.id for hit in retriever.search("-pump", 10, mode="lexical")} == {"pump", "house"}


@pytest.mark.parametrize(
    "query",
    [
        "hull + pump",
        "hull - 5 * 2 ~",
        "hull e-mail c++",
        'hull ""',
        "hull 10:30 https://x",
        "Warning: hull std::vector a:b",
    ],
)
def test_signs_by_themselves_mean_nothing(retriever: Retriever, query: str) -> None:
    assert "ship" in found(retriever, query)


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ('the "pump house', ConfigError, "quote at character 5 .* does not close"),
        ('pump"house', ConfigError, "does not close"),
        ("-pump -house", InputError, "only excludes words"),
        ("title:lease", ConfigError, "fields are not supported"),
        ("title: lease", ConfigError, "fields are not supported"),
        ("kind:notice", ConfigError, "fields are not supported"),
        ('"pump house"~3', ConfigError, "'~3' after a phrase"),
        ('title:"pump house"', ConfigError, "'title:' before a phrase"),
        ('-("pump house")', ConfigError, "'-\\(' before a phrase"),
        ("covid-19*", ConfigError, "is one word"),
        (f'"pump"{"x" * 1000}', ConfigError, "xx…' after a phrase"),
        (f"-{'x' * 1000}", InputError, "only excludes"),
        (
            " ".join(f"+w{i}" for i in range(10_000)),
            ConfigError,
            "10,000 conditions in one query; at most 100",
        ),
    ],
)
def test_what_means_nothing_is_said_in_one_line(
    retriever: Retriever, query: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        retriever.search(query, operators=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_beginning_of_too_many_words_is_refused(tmp_path: Path) -> None:
    text = " ".join(f"w{i}x" for i in range(2000))
    with Index.create(tmp_path / "ix", model=FakeEmbedder(split_size=5000)) as index:
        index.add([{"_id": "a", "text": text}])
        with pytest.raises(ConfigError, match=r"'w\*' matches more than 1,024 words"):
            index.search("w*", operators=True)
        assert [hit.id for hit in index.search("w19*", operators=True)] == ["a"]


def test_what_fulfilled_a_condition_is_marked(retriever: Retriever) -> None:
    def marked(query: str) -> list[str]:
        return [
            hit.text[a:b]
            for hit in retriever.search(query, 10, operators=True)
            for a, b in hit.highlights
        ]

    assert marked("managem*") == ["management"]
    assert marked('"pump house" -hull') == ["pump", "house"]
    assert marked("managment~") == ["management"]


def test_a_condition_that_nothing_fulfills_is_named(retriever: Retriever) -> None:
    nothing = retriever.search('+pump +submarine "hull pump" -house', operators=True)
    assert (list(nothing), nothing.unmet) == ([], ("+submarine", '"hull pump"'))
    # each alone is there
    assert retriever.search("+pump +hull", operators=True).unmet == ("+pump +hull",)
    for query in ("+pump -pump", '"pump house" -pump', "+hull -ship*"):
        assert list(retriever.search(query, operators=True)) == []
        assert retriever.search(query, operators=True).unmet == (query,)


def test_words_that_a_search_leaves_out_are_not_suggested(tmp_path: Path) -> None:
    texts = ["That sauce holds the secret ingredient.", "They were there then."]
    with Index.open(tmp_path / "index", create=True, model=FakeEmbedder()) as opened:
        opened.add([{"_id": str(n), "text": text} for n, text in enumerate(texts)])
        assert opened.search("what is the secret of them where").suggestions == {}
        assert opened.search("what secrat").suggestions == {"secrat": ("secret",)}


def test_words_that_no_document_has_are_suggested_and_not_searched(retriever: Retriever) -> None:
    result = retriever.search("the corosion of bearigns, 1999 书写 qqqqqq", mode="lexical")
    assert bool(result) == ("of" in retriever.words("of corosion"))
    assert (result.suggestions["corosion"], result.suggestions["bearigns"][0]) == (
        ("corrosion",),
        "bearings",
    )
    assert result.suggestions.keys() == {"corosion", "bearigns"}
    assert retriever.search("corrosion bearing").suggestions == {}
    again = pickle.loads(pickle.dumps(result))
    assert (again, again.suggestions, again.words) == (result, result.suggestions, result.words)


def test_letters_written_in_parts_are_letters(tmp_path: Path) -> None:
    text = unicodedata.normalize("NFD", "हिन्दी भारत की भाषा, 한국어 계약서 naïve")
    build_index([{"_id": "a", "text": text}], tmp_path / "ix", model=FakeEmbedder(split_size=100))
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder(split_size=100)) as opened:
        for query in ("한국어~", "계약*", "-한국", "+계약서"):
            assert found(opened, unicodedata.normalize("NFD", f"भारत {query}")) == (
                {"a"} if query[0] != "-" else set()
            )
        assert opened.search("हिन्दि", mode="lexical").suggestions == {"हिन्दि": ("हिन्दी",)}


@pytest.mark.parametrize("granularity", ["document", "passage"])
def test_suggestions_stand_as_texts_have_them(granularity: str, tmp_path: Path) -> None:
    texts = ["Résumés lie here.\n\nCRÈME of Zoë", "the résumé of Zürich", "ZÜRICH", "RÉSUMÉ"]
    documents = [{"_id": str(n), "text": text} for n, text in enumerate(texts)]
    build_index(
        documents,
        tmp_path / "ix",
        model=FakeEmbedder(),
        granularity=granularity,
        language="english",
    )
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as opened:
        suggested = opened.search("rezume cremme zurihc").suggestions
    assert suggested == {"rezume": ("résumé",), "cremme": ("crème",), "zurihc": ("zürich",)}


def test_conditions_see_what_was_changed_just_now(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add([{"_id": str(i), "text": f"zinc anode number{i}"} for i in range(300)])
        index.upsert(
            [{"_id": "7", "text": "a submarine valve"}, {"_id": "new", "text": "submarines dive"}]
        )
        assert found(index, "submarin*") == {"7", "new"}
        assert found(index, "submarines~", mode="dense") == {"7", "new"}
        assert found(index, '"submarine valve"', unit="passage") == {"7"}
        index.delete(["7"])
        assert found(index, "+submarine") == {"new"}
        assert found(index, "number7*") == {str(i) for i in range(70, 80)}
        index.compact()
        assert found(index, "submarin* -zinc") == {"new"}
        assert index.search("submarina").suggestions == {"submarina": ("submarines",)}
        index.delete(where={})
        assert index.search("submarina submarines").suggestions == {}, (
            "words of deleted documents are no help"
        )


def test_several_indexes_are_searched_with_conditions(tmp_path: Path) -> None:
    for name, text in {"one": "the pump house", "two": "a house; pumps"}.items():
        build_index([{"_id": name, "text": text}], tmp_path / name, model=FakeEmbedder())
    with Retriever.load([tmp_path / "one", tmp_path / "two"], model=FakeEmbedder()) as both:
        assert found(both, '"pump house"') == {"one"}
        assert found(both, "pump*") == {"one", "two"}
        assert found(both, "house -pumps*") == {"one"}
        assert both.search("huose").suggestions == {"huose": ("house",)}


@refusals(
    {
        ConfigError: {
            "operators need queries of text": lambda retriever: retriever.search_vectors(
                FakeEmbedder().encode_queries(["pump"]), operators=True
            ),
            "operators='yes': must be True or False": lambda retriever: retriever.search(
                "pump", operators="yes"
            ),
        },
    }
)
def test_operators_need_texts_and_a_truth(retriever: Retriever, refused: Refusal) -> None:
    refused(retriever)
