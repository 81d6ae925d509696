"""Questions that name their document: the document answers, with the passage that the rest of the
question asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Retriever, build_index, hits_to_prompt
from aveyb_retrieval.indexes.search import evidence, named_documents, snapshot
from tests import one_change
from tests.recorder import record_calls

if TYPE_CHECKING:
    from pathlib import Path

BIRDS = ["Osprey", "Kestrel", "Harrier", "Merlin", "Plover", "Dunlin"]
FORMS: dict[str, dict[str, str]] = {
    "title": {"_id": "c{n}", "title": "Supply agreement {name} Ltd"},
    "path": {"_id": "contracts/2024/{name}-supply.md", "title": "Supply agreement"},
    "beginning": {"_id": "d{n}", "title": "Supply agreement"},
    "metadata": {"_id": "m{n}", "title": "Supply agreement", "client": "{name} Ltd"},
}
TERMS = {
    "notice": "Either party may end this agreement by giving {} months' written notice.",
    "penalty": "For each day of late delivery the supplier owes {} euros.",
    "law": "This document is governed by the law of region {}.",
}
ASK = {
    "notice": "how many months of notice end it?",
    "penalty": "what is owed for a day of late delivery?",
    "law": "which law governs it?",
}
FILL = ["records", "samples", "packaging", "training", "tools", "badges", "noise", "travel"]


def contract(n: int, form: str) -> dict[str, Any]:
    name = BIRDS[n] if form == "beginning" else "the Company"
    beginning = (
        f"# Supply Agreement\n\nThis agreement is between {name} Ltd (the Supplier) and Northern"
        f" Works. {name} Ltd makes and sells goods. Signed for {name} Ltd and for Northern Works.\n"
    )
    sections = [
        f"## {word.title()}\n\n"
        + f"The supplier keeps {word} apart and tells the buyer about {word} in writing. " * 5
        for word in FILL
    ]
    for place, term in enumerate(TERMS.values()):
        sections.insert(2 + 3 * place, f"## Terms\n\n{term.format(n + 3)}\n")
    fields = {key: value.format(n=n, name=BIRDS[n]) for key, value in FORMS[form].items()}
    return {**fields, "text": "\n".join([beginning, *sections])}


def contracts(form: str) -> list[dict[str, Any]]:
    return [contract(n, form) for n in range(len(BIRDS))]


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index of six contracts for each way in which they are called."""
    top = tmp_path_factory.mktemp("named")
    for form in FORMS:
        build_index(contracts(form), top / form, passage_tokens=64)
    return {form: top / form for form in FORMS}


@pytest.fixture(params=FORMS)
def named(request: pytest.FixtureRequest, indexes: dict[str, Path]) -> tuple[str, Retriever]:
    return request.param, Retriever.load(indexes[request.param])


def answer(n: int, key: str) -> str:
    return TERMS[key].format(n + 3)


@pytest.mark.parametrize("key", TERMS)
@pytest.mark.parametrize("unit", ["passage", "document"])
def test_the_named_document_answers(named: tuple[str, Retriever], unit: Any, key: str) -> None:
    form, retriever = named
    for n in (0, 4):
        for question in (f"In the {BIRDS[n]} contract, {ASK[key]}", f"{BIRDS[n]}: {ASK[key]}"):
            hit = retriever.search(question, k=3, unit=unit)[0]
            assert hit.id == contract(n, form)["_id"]
            assert answer(n, key) in str(hit.passage)
            assert hit.best_sentence is not None
            assert hit.text[slice(*hit.best_sentence)] in answer(n, key)


def test_two_named_documents_both_answer(indexes: dict[str, Path]) -> None:
    retriever = Retriever.load(indexes["title"])
    hits = retriever.search(f"Compare Osprey and Dunlin: {ASK['law']}", k=2, unit="passage")
    assert {hit.id for hit in hits} == {"c0", "c5"}
    for hit in hits:
        assert answer(int(hit.id[1:]), "law") in str(hit.passage)


def test_a_name_alone_finds_the_beginning(indexes: dict[str, Path]) -> None:
    hit = Retriever.load(indexes["beginning"]).search("Plover Ltd", k=1, unit="passage")[0]
    assert (hit.id, hit.span and hit.span[0]) == ("d4", 0)


QUESTIONS = [ASK["law"], "samples and badges", "which goods are sold?", "what does a buzzard owe?"]


@pytest.mark.parametrize("options", [{"unit": "passage"}, {}, {"fusion": "rrf"}])
def test_a_question_that_names_nothing_ranks_as_without_names(
    indexes: dict[str, Path], options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = Retriever.load(indexes["path"])

    def ranked() -> list[Any]:
        return [
            [(hit.id, hit.span, hit.score, hit.confidence) for hit in found]
            for found in (retriever.search(question, k=20, **options) for question in QUESTIONS)
        ]

    present = ranked()
    monkeypatch.setattr(evidence, "find_named_documents", lambda _: None)
    assert ranked() == present


def test_pages_are_slices_of_one_ranking(indexes: dict[str, Path]) -> None:
    retriever = Retriever.load(indexes["title"])
    question = f"Osprey: {ASK['penalty']}"
    options: Any = {"unit": "passage", "candidates": 5}
    whole = retriever.search(question, k=30, **options)
    parts = [retriever.search(question, k=10, offset=at, **options) for at in (0, 10, 20)]
    spans = [(hit.id, hit.span) for hit in whole]
    assert [(hit.id, hit.span) for part in parts for hit in part] == spans
    assert len({*spans}) == len(spans)
    scores = [hit.score for hit in whole]
    assert scores == sorted(scores, reverse=True)


def test_under_a_filter_and_for_those_who_see_a_part(indexes: dict[str, Path]) -> None:
    retriever = Retriever.load(indexes["metadata"])
    question = f"Merlin: {ASK['notice']}"
    some = {"client": {"$in": [f"{name} Ltd" for name in BIRDS[2:]]}}
    for found in (
        retriever.search(question, k=1, filter=some, unit="passage"),
        retriever.visible(some).search(question, k=1, unit="passage"),
        retriever.visible(some).search(question, k=1),
    ):
        assert found[0].id == "m3"
        assert answer(3, "notice") in str(found[0].passage)
    hidden = retriever.visible({"client": {"$ne": "Merlin Ltd"}})
    assert "m3" not in {hit.id for hit in hidden.search(question, k=50, unit="passage")}


def test_in_several_indexes(tmp_path: Path) -> None:
    every = contracts("title")
    for name, part in (("first", every[:3]), ("second", every[3:])):
        build_index(part, tmp_path / name, passage_tokens=64)
    retriever = Retriever.load({name: tmp_path / name for name in ("first", "second")})
    for n, name in ((1, "first"), (5, "second")):
        for unit in ("passage", "document"):
            hit = retriever.search(f"{BIRDS[n]}: {ASK['penalty']}", k=1, unit=unit)[0]  # type: ignore[call-overload]
            assert (hit.id, hit.index) == (f"c{n}", name)
            assert answer(n, "penalty") in str(hit.passage)


def test_prompts_and_confidence(indexes: dict[str, Path]) -> None:
    retriever = Retriever.load(indexes["beginning"])
    hits = retriever.search(f"Harrier: {ASK['law']}", k=2, unit="passage")
    assert answer(2, "law") in hits_to_prompt(hits, max_tokens=60)
    assert hits[0].confidence is not None
    assert 0 <= hits[0].confidence <= 1
    assert retriever.search(f"Harrier: {ASK['law']}", min_score=0.0, unit="passage")


@pytest.fixture
def few_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the two best passages of each ranking compete: most documents have none."""
    monkeypatch.setattr(named_documents, "PASSAGES_COMPETING", 2)


NAMED_BY_NOTHING_ELSE = ["title", "path", "metadata"]


@pytest.mark.usefixtures("few_compete")
@pytest.mark.parametrize("form", NAMED_BY_NOTHING_ELSE)
@pytest.mark.parametrize("unit", ["passage", "document"])
def test_a_document_that_only_its_names_speak_for(
    indexes: dict[str, Path], form: str, unit: Any
) -> None:
    retriever = Retriever.load(indexes[form])
    for n, name in enumerate(BIRDS):
        question = f"In the {name} contract, {ASK['penalty']}"
        hits = retriever.search(question, k=3, candidates=2, unit=unit)
        own = [hit for hit in hits if hit.id == contract(n, form)["_id"]]
        assert answer(n, "penalty") in str(own[0].passage)


def _ids(hits: list[Any]) -> set[str]:
    return {hit.id for hit in hits}


@pytest.mark.usefixtures("few_compete")
def test_names_follow_metadata_that_people_set(tmp_path: Path) -> None:
    build_index(contracts("metadata"), tmp_path / "made", passage_tokens=64)
    one_change.update_metadata(tmp_path / "made", {"client": "Siskin GmbH"}, ["m3"])
    one_change.update_metadata(tmp_path / "made", {"checked": True}, ["m1"])
    retriever = Retriever.load(tmp_path / "made")
    question = f"Siskin: {ASK['notice']}"
    assert "m3" in _ids(retriever.search(question, k=3, candidates=2, unit="passage"))
    some = ["Siskin GmbH", "Osprey Ltd", "Plover Ltd"]
    visible = retriever.visible({"client": {"$in": some}})
    assert "m3" in _ids(visible.search(question, k=3, candidates=2, unit="passage"))
    hidden = retriever.visible({"client": {"$ne": "Siskin GmbH"}})
    assert "m3" not in _ids(hidden.search(question, k=50, unit="passage"))
    with retriever._engine.view() as view:
        listed = view.documents_called(["merlin", "siskin", "kestrel", "nothing"])
    assert [len(docs) for docs in listed] == [0, 1, 1, 0]


def test_what_documents_are_called_by_is_stored_as_it_would_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of documents that came later or whose metadata changed; those are read, no others."""
    root = tmp_path / "made"
    made = [document for form in FORMS for document in contracts(form)]
    for number, document in enumerate(made):
        document["_id"] = f"{number}/{document['_id']}"
    made[5] |= {"zone": "North", "area": "Quay"}  # not in the order in which Lance has them
    build_index(made[:-3], root, passage_tokens=64)
    one_change.add([*made[-3:], {"_id": "empty", "text": ""}], root)
    one_change.delete(root, [made[2]["_id"]])
    renamed = made[3]["_id"]
    one_change.update_metadata(root, {"client": "Siskin GmbH"}, [renamed])
    one_change.update_metadata(root, {"pages": 12}, [made[4]["_id"]])  # names nothing
    one_change.upsert([{**made[5], "pages": 12}], root)
    with Retriever.load(root) as retriever, retriever._engine.view() as view:
        docs = view.matching(view.select({})).tolist()
        read = named_documents.read_called(view, [*docs, 12_345])
        asked = list[int]()

        def note(source: Any, docs: Any, languages: Any) -> Any:
            asked.extend(docs)
            return {doc: read[doc] for doc in docs}

        monkeypatch.setattr(snapshot, "read_called", note)
        called = view.called([*docs, 12_345])
        assert called.keys() == read.keys()
        for doc, words in called.items():
            assert [{*part.split()} for part in words] == [{*part.split()} for part in read[doc]]
        assert len(read) == len(docs) == len(made)
        assert asked == [*view.find([renamed]).values()]
        assert "siskin" in read[asked[0]].path


def test_a_change_of_metadata_keeps_to_the_language_of_a_document(tmp_path: Path) -> None:
    """What it is called by is as that of a document that came with this metadata."""
    german = "Die Mieter kündigten die Häuser schriftlich, bevor die Verwalter es verlangten. "
    english = "The tenants gave written notice of the houses before the managers asked for it. "
    rows = [{"_id": f"en{i}", "title": "Notices", "text": english * 3} for i in range(6)]
    rows += [{"_id": "de", "title": "Kündigungen", "text": german * 3, "client": "Vereine"}]
    build_index(rows, tmp_path / "made", language="auto", passage_tokens=64)
    rows[-1] = {**rows[-1], "client": "Vermieter"}
    build_index(rows, tmp_path / "changed", language="auto", passage_tokens=64)
    one_change.update_metadata(tmp_path / "changed", {"client": "Vereine"}, ["de"])
    names = []
    for folder in ("made", "changed"):
        with Retriever.load(tmp_path / folder) as retriever, retriever._engine.view() as view:
            called = view.called([*view.find(["de"]).values()])
            names += [[{*part.split()} for part in words] for words in called.values()]
    assert names[0] == names[1]
    assert {"verein", "kundig", "haus"} <= set.union(*names[0])


@pytest.mark.usefixtures("few_compete")
def test_only_names_speak_for_a_document_of_one_of_several_indexes(tmp_path: Path) -> None:
    every = contracts("path")
    for name, part in (("first", every[:3]), ("second", every[3:])):
        build_index(part, tmp_path / name, passage_tokens=64)
    retriever = Retriever.load({name: tmp_path / name for name in ("first", "second")})
    for n, name in ((1, "first"), (5, "second")):
        question = f"{BIRDS[n]}: {ASK['notice']}"
        hits = retriever.search(question, k=3, candidates=2, unit="passage")
        own = [hit for hit in hits if hit.id == every[n]["_id"]]
        assert own[0].index == name
        assert answer(n, "notice") in str(own[0].passage)


@pytest.mark.parametrize("form", FORMS)
def test_one_selected_document_is_told_from_all_that_are_visible(
    indexes: dict[str, Path], form: str
) -> None:
    retriever = Retriever.load(indexes[form])
    chosen = str(contract(2, form)["_id"])
    for question in (f"In the {BIRDS[2]} contract, {ASK['law']}", f"{BIRDS[2]} Ltd: {ASK['law']}"):
        hits = retriever.search(question, k=3, unit="passage", ids=[chosen])
        assert {hit.id for hit in hits} == {chosen}
        assert answer(2, "law") in str(hits[0].passage)
        named = _named(retriever, question, ids=[chosen])
        assert named is not None
        assert BIRDS[2] not in named.rest
    assert _named(retriever, f"{BIRDS[1]}: {ASK['law']}", ids=[chosen]) is None  # it is another one


def _named(retriever: Retriever, question: str, **options: Any) -> Any:
    """What a search finds that a question names."""
    seen = []
    find = evidence.find_named_documents

    def noted(of: Any) -> Any:
        seen.append(find(of))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "find_named_documents", noted)
        retriever.search(question, unit="passage", **options)
    return seen[0] and seen[0].named


@pytest.mark.parametrize("form", FORMS)
def test_a_question_that_is_all_name_finds_the_beginning(
    indexes: dict[str, Path], form: str
) -> None:
    retriever = Retriever.load(indexes[form])
    for n, name in enumerate(BIRDS):
        for unit in ("passage", "document"):
            hit = retriever.search(f"the {name}?", k=1, unit=unit)[0]  # type: ignore[call-overload]
            assert (hit.id, hit.span and hit.span[0]) == (contract(n, form)["_id"], 0)


def test_a_long_rest_is_not_encoded_again(
    indexes: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = record_calls(monkeypatch, named_documents, "_encode")
    question = "In the Osprey contract, how much notice is needed to end it?"
    with Retriever.load(indexes["title"]) as retriever:
        assert retriever.search(question, k=3, unit="passage")
        assert len(encoded) == 1
        assert retriever.search(f"{question} {'gravel ' * 1000}", k=3, unit="passage")
    assert len(encoded) == 1


def test_long_titles_and_questions_raise_nothing(tmp_path: Path) -> None:
    """Titles of 2,000 words, all the same, and a question of as many."""
    title = " ".join(f"word{n}" for n in range(2_000))
    rows = [{"_id": f"t{n}", "title": title, "text": contract(n, "path")["text"]} for n in range(4)]
    build_index(rows, tmp_path / "long", passage_tokens=64)
    retriever = Retriever.load(tmp_path / "long")
    assert _named(retriever, f"word7: {ASK['law']}") is None  # all are called so
    assert retriever.search(f"word7: {ASK['law']}", unit="passage")
    assert retriever.search(title, k=3, unit="passage")
    assert retriever.search(f"In the Osprey contract, {ASK['law']} {title}", k=3)


@pytest.mark.parametrize(
    ("ids", "question"),
    [
        (["Сапсан.txt", "Кречет.txt", "Беркут.txt"], "Какой срок у договора Сапсан?"),  # noqa: RUF001
        (["隼製造.txt", "鷹物流.txt", "鶴化学.txt"], "隼製造の契約の期間はどれくらいですか"),
        (["العقاب.txt", "الصقر.txt", "الباز.txt"], "ما هي المدة في عقد العقاب؟"),
        (["%C3%89pervier.txt", "Faucon.txt", "Milan.txt"], "Épervier : quel est le délai ?"),
    ],
)
def test_names_in_other_scripts_than_ours(tmp_path: Path, ids: list[str], question: str) -> None:
    text = "\n\n".join(contract(0, "path")["text"].split("\n\n")[:6])
    build_index([{"_id": name, "text": text} for name in ids], tmp_path / "ix", passage_tokens=32)
    retriever = Retriever.load(tmp_path / "ix")
    named = _named(retriever, question)
    assert named is not None
    assert len(named.docs) == 1
    assert retriever.search(question, k=1, unit="passage", fold=False)[0].id == ids[0]
