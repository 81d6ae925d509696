"""Index folders that were damaged or made to harm: an error of ours, found by verify, and nothing
outside touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.changes.verify import verify_apart, verify_index
from aveyb_retrieval.indexes.store import manifest
from aveyb_retrieval.indexes.store.place import read_manifest
from rigs.faults import consistent
from rigs.faults.processes import child, quiet
from rigs.fuzz.indexes import attempt, interrupted, listed, seal, use, version, write_sealed
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "ix"
    build_index(
        [*make_documents(60), {"_id": "no text"}],
        root,
        model=FakeEmbedder(),
        index="HNSW8",
        on_error="skip",
    )
    one_change.upsert(make_documents(3, seed=2), root, model=FakeEmbedder())
    one_change.delete(root, ["doc-5"])
    return root


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "ix")
    return tmp_path / "ix"


def add(root: Path) -> None:
    one_change.add([{"_id": "new", "text": "word1"}], root, model=FakeEmbedder())


def use_words(root: Path) -> None:
    """What a reader asks of the words of an index."""
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        for query in ("wor*", "wrod12~", '"word1 word2"', "-word3 +word4"):
            retriever.search(query, operators=True)
        assert retriever.search("wrod12 wordd3").suggestions is not None
        for granularity in ("document", "passage"):
            retriever.search(
                "word1 word2",
                mode="lexical",
                granularity=granularity,
                filter={"year": {"$gte": 2001}},
            )
        list(retriever.grep("word1"))


# --- damage --------------------------------------------------------------------------------------


def all_files(root: Path) -> list[Path]:
    return [*(root / name for name in listed(root)), version(root), root / "current"]


@pytest.mark.parametrize("count", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_one_flipped_byte_anywhere_is_found(index: Path, count: int) -> None:
    rng = random.Random(0)
    for path in all_files(index):
        data = path.read_bytes()
        for place in [rng.randrange(len(data)) for _ in range(count)]:
            flipped = bytearray(data)
            flipped[place] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            with pytest.raises(AveyBError):
                use(index)
            assert verify_index(index).problems, f"{path.name}, byte {place}"
        path.write_bytes(data)
    assert verify_index(index).problems == []


@pytest.mark.parametrize("damage", ["empty", "half", "missing"])
def test_cut_and_missing_files_are_found(index: Path, damage: str) -> None:
    for path in all_files(index):
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(data[: len(data) // 2] if damage == "half" else b"")
        with pytest.raises(AveyBError):
            use(index)
        path.write_bytes(data)
    use(index)


def test_damage_of_an_index_too_large_to_hash_is_an_answer_or_an_error_of_ours(index: Path) -> None:
    with child(read_flipped, index, 25) as reader:
        assert reader.answer(300.0) > 2


def read_flipped(connection: Connection, root: Path, tries: int) -> None:
    """Use an index whose files have a byte changed, one after the other; how many of them were
    refused.
    """
    quiet()
    manifest._QUICK_BYTES = 0
    rng, refused = random.Random(1), 0
    for number in range(tries):
        place = root.parent / f"{number}"
        shutil.copytree(root, place)
        path = place / rng.choice(listed(place))
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            use(place)
        except AveyBError:
            refused += 1
        shutil.rmtree(place)
    connection.send(refused)


NUMBERS = ("9000000000000000000", "-1")
COLUMNS = {
    "documents": ("doc", "passages"),
    "texts": ("doc",),
    "passages": ("passage", "start", "stop"),
    "words": ("stop", "row", "number", "length"),
}


def test_numbers_in_files_that_lead_nowhere_are_an_answer_or_an_error_of_ours(index: Path) -> None:
    with child(read_wrong_numbers, index) as reader:
        for column in chain.from_iterable(COLUMNS.values()):
            assert reader.answer(300.0) == column


def _wrong(value: Any, number: int) -> Any:
    """Another number, or a list with some others."""
    if not isinstance(value, list):
        return number
    return [min(number, 250) % 251 if place % 7 == 1 else old for place, old in enumerate(value)]


def read_wrong_numbers(connection: Connection, root: Path) -> None:
    """Use an index whose files name rows that are not there, column by column."""
    quiet()
    for table, column in [
        (table, column) for table, columns in COLUMNS.items() for column in columns
    ]:
        for number in NUMBERS:
            place = root.parent / f"{table}-{column}{number}"
            shutil.copytree(root, place)
            if table == "documents":
                version = read_manifest(place).tables.documents
                opened = lance.dataset(str(place / f"{table}.lance"), version=version)
                opened.update({column: number}, where="doc % 7 = 1")
                consistent.reseal(place, {table: opened.version})
            else:
                change = partial(_wrong, number=int(number))
                consistent.change_row(place, table, column, change, random.Random(0))
            attempt(*(partial(step, place) for step in (use, use_words, problems_of)))
        connection.send(column)


def test_faiss_files_are_made_again_by_repair(index: Path) -> None:
    path = index / listed(index, "faiss/document")[0]
    os.truncate(path, path.stat().st_size - 100)
    verdict = verify_index(index, repair=True)
    assert verdict.problems
    assert verdict.repaired
    assert problems_of(index) == []
    use(index)


def test_repair_finds_a_lost_pointer_and_leaves_alone_what_has_no_copy(index: Path) -> None:
    (index / "current").write_text("v000099-12345678\n")
    assert not verify_index(index).repaired
    assert verify_index(index, repair=True).repaired
    use(index)
    path = index / listed(index, "documents.lance/data/")[0]
    path.write_bytes(path.read_bytes()[:-20])
    assert not verify_index(index, repair=True).repaired


@pytest.mark.parametrize("tries", [4, pytest.param(160, marks=pytest.mark.slow)])
def test_a_change_with_its_hashes_is_found_where_answers_change(tries: int, tmp_path: Path) -> None:
    outcomes, missed = consistent.run(tries, 0, tmp_path)
    print(f"\n{dict(outcomes)}")
    assert missed == []


# --- links, pipes and devices --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "current.tmp", "journal.json.tmp"])
@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_place_of_a_file_never_leads_a_writer_outside(
    index: Path, tmp_path: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (index / name).unlink(missing_ok=True)
    plant(index / name, victim)
    try:
        add(index)
    except IndexFormatError as error:
        assert name == "lock"
        assert "remove it" in str(error)
    assert victim.read_text() == "precious"


FOLDERS = [
    "documents.lance/data",
    "texts",
    "words",
    "documents.lance/_versions",
    "faiss",
    "rejected",
    "versions",
]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_leads_outside_is_refused(index: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    shutil.move(index / name, outside)
    (outside / "kept").write_text("precious")
    before = sorted(path.name for path in outside.rglob("*"))
    (index / name).symlink_to(outside)
    with pytest.raises(AveyBError):
        add(index)
    if name not in ("rejected", "versions"):
        with pytest.raises(AveyBError):
            use(index)
    assert sorted(path.name for path in outside.rglob("*")) == before


def endless(path: Path, how: str) -> None:
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as handle:
            handle.truncate(1 << 40)


@pytest.mark.parametrize("how", ["pipe", "device", "sparse"])
@pytest.mark.parametrize(
    "name",
    ["current", "manifest", "faiss/document", "documents.lance/data/", "texts/", "words/"],
)
def test_what_can_be_read_without_end_is_refused(index: Path, name: str, how: str) -> None:
    found = {"current": index / "current", "manifest": version(index)}
    endless(found[name] if name in found else index / listed(index, name)[0], how)
    with child(all_refuse, index) as process:
        assert process.answer(60.0) == "refused"


def all_refuse(connection: Connection, root: Path) -> None:
    quiet()
    with pytest.raises(AveyBError):
        use(root)
    with suppress(AveyBError):
        assert verify_index(root).problems
    connection.send("refused")


# --- manifests and pointers ----------------------------------------------------------------------


def rewrite(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and give it a checksum that fits."""
    path = version(root)
    body = json.loads(path.read_bytes())
    body.pop("checksum")
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), **body}))


OTHER = {"bytes": 5, "sha256": "0" * 64}
HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "from the future": lambda m: m.update(format=99),
    "of no version": lambda m: m.pop("format"),
    "a path that leads out": lambda m: m["files"].update({"../../../etc/passwd": OTHER}),
    "an absolute path": lambda m: m["files"].update({"/etc/passwd": OTHER}),
    "a path inside that leads out": lambda m: m["files"].update({"faiss/../../x.faiss": OTHER}),
    "a tier that leads out": lambda m: m["tiers"][0].update(file="../outside.faiss"),
    "a tier that is not listed": lambda m: m["tiers"][0].update(file="faiss/other.faiss"),
    "a file of absurd size": (
        lambda m: m["files"].update({m["tiers"][0]["file"]: {**OTHER, "bytes": 1 << 62}})
    ),
    "a file of negative size": lambda m: m["files"].update({"faiss/x": {**OTHER, "bytes": -1}}),
    "a size of text": lambda m: m["files"].update({"faiss/x": {**OTHER, "bytes": "5"}}),
    "files are a list": lambda m: m.update(files=[]),
    "no tables": lambda m: m.update(tables={}),
    "a table of no version": lambda m: m["tables"].update(documents=0),
    "a table of another version": lambda m: m["tables"].update(documents=1 << 40),
    "a table of nobody": lambda m: m["tables"]["rows"].update(others=[]),
    "another granularity": lambda m: m["encoding"].update(granularity="word"),
    "an absurd dimension": lambda m: m["encoding"].update(dim=1 << 40),
    "another dimension": lambda m: m["encoding"].update(dim=17),
    "a dimension of text": lambda m: m["encoding"].update(dim="16"),
    "a language that nobody speaks": lambda m: m["encoding"].update(language=["english"]),
    "a model that is a list": lambda m: m["encoding"].update(model=[]),
    "a model without fingerprint": lambda m: m["encoding"].update(model={}),
    "more dead than vectors": lambda m: m["tiers"][0].update(dead=1 << 40),
    "another count": lambda m: m["tiers"][0].update(count=1),
    "tiers that overlap": lambda m: m["tiers"].append(m["tiers"][0]),
    "settings of text": lambda m: m["tiers"][0].update(params={"nprobe": "x"}),
    "tiers are null": lambda m: m.update(tiers=None),
    "counts of text": lambda m: m.update(counts={"documents": "many"}),
    "a negative count": lambda m: m["counts"].update(documents=-1),
    "a count beyond 64 bits": lambda m: m["counts"].update(words=1 << 63),
    "a tier of absurd size": lambda m: m["tiers"][0].update(count=1 << 62),
    "numbers of documents that have run out": lambda m: m.update(next_doc=1 << 43),
    "a table of a version beyond 64 bits": lambda m: m["tables"].update(documents=1 << 64),
    "words of a table of nobody": lambda m: m["tables"]["words"].update({"x/words": []}),
    "rows of absurd numbers": lambda m: m["tables"]["rows"]["texts"][0].update(rows=1 << 61),
    "rows that overlap": lambda m: m["tables"]["rows"]["texts"].append(
        m["tables"]["rows"]["texts"][0]
    ),
    "half a character": lambda m: m["files"].update({"\ud800": OTHER}),
    "another build": lambda m: m.update(build="../../.."),
    "a number of text": lambda m: m.update(number="1"),
    "a job of null": lambda m: m.update(job=None),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_refused(index: Path, what: str) -> None:
    rewrite(index, HOSTILE[what])
    with pytest.raises(IndexFormatError):
        use(index)
    with suppress(IndexFormatError):
        assert verify_index(index).problems


def test_deleted_rows_that_claim_to_be_endless_are_refused(index: Path) -> None:
    """Lance takes the memory that the list asks for, and ends the process where there is none."""
    names = listed(index, "/_deletions/")
    assert names
    for name in names:
        path = index / name
        data = path.read_bytes()
        place = data.rindex(b"\xff" * 8)  # the length of the last buffer, -1: as it is
        path.write_bytes(data[:place] + (1 << 57).to_bytes(8, "little") + data[place + 8 :])
        seal(index)
        with pytest.raises(IndexFormatError, match=r"_deletions|\.lance: files of the version"):
            use(index)
        assert verify_index(index).problems
        path.write_bytes(data)
    seal(index)
    use(index)


def test_a_process_that_reading_ends_is_a_finding(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance aborts on some files that were made to harm; which, changes with its versions, so here
    a script does.
    """
    assert verify_apart(index).problems == []
    dies = tmp_path / "python3"  # what has another name is not taken for a Python
    dies.write_text("#!/bin/sh\nkill -ABRT $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dies))
    (problem,) = verify_apart(index).problems
    assert str(index) in problem
    assert "SIGABRT" in problem


def test_another_process_tells_what_verify_raises(tmp_path: Path) -> None:
    with pytest.raises(AveyBError, match="no index"):
        verify_apart(tmp_path)


def test_a_manifest_that_counts_no_words_ends_no_search(index: Path) -> None:
    """The number of rows that hold a word comes from a score and the mean length of rows."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        body["counts"]["words"] = 0
        return body

    seal(index, change)
    use(index)


def test_a_manifest_with_text_that_is_no_utf_8_can_be_changed(index: Path) -> None:
    """It goes into journals and manifests again, and its job may be any JSON."""
    seal(
        index,
        lambda body: {
            **body,
            "encoding": {**body["encoding"], "model_source": "\ud800"},
            "job": {"\ud800": 1},
        },
    )
    add(index)
    assert verify_index(index).problems == []


JOURNALS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a table is missing": lambda j: j["tables"]["rows"].pop("texts"),
    "a table of a negative version": lambda j: j["tables"].update(documents=-3),
    "a negative count": lambda j: j["counts"].update(documents=-1),
    "numbers of documents that have run out": lambda j: j.update(next_doc=1 << 60),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interrupted(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def unfinished(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "ix")


@pytest.mark.parametrize("what", JOURNALS)
def test_a_journal_that_cannot_be_is_begun_again(what: str, unfinished: Path) -> None:
    path = unfinished / "journal.json"
    journal = json.loads(path.read_bytes())
    JOURNALS[what](journal)
    write_sealed(path, journal)
    check_begun_again(unfinished)


def test_a_journal_that_was_changed_is_begun_again(unfinished: Path) -> None:
    """A count that could be, but is not what the datasets hold."""
    path = unfinished / "journal.json"
    journal = json.loads(path.read_bytes())
    journal["counts"]["tokens"] += 1
    path.write_text(json.dumps(journal))
    check_begun_again(unfinished)


def test_a_copy_of_an_unfinished_index_is_continued_if_nothing_was_changed(
    unfinished: Path,
) -> None:
    """What the tests above change, and not that it was copied, is why theirs are begun again."""
    assert one_change.add(
        make_documents(20, seed=5, first=40), unfinished, model=FakeEmbedder()
    ).resumed


def check_begun_again(root: Path) -> None:
    added = make_documents(20, seed=5, first=40)
    assert one_change.add(added, root, model=FakeEmbedder()).resumed is False
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        assert {document["_id"] for document in added} <= {
            document.id for document in retriever.documents()
        }
    assert problems_of(root) == []


MANIFESTS = {
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "cut": b"{" * 10,
    "deep": b"[" * 200_000,
    "a format alone": b'{"format": 4}',
    "UTF-16": b"\xff\xfe",
}


@pytest.mark.parametrize("data", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_is_deep_or_no_json_is_refused(index: Path, data: bytes) -> None:
    version(index).write_bytes(data)
    with pytest.raises(IndexFormatError):
        use(index)


def make_huge(index: Path) -> None:
    with version(index).open("wb") as handle:
        handle.truncate(65 << 20)


@refusals(
    {
        IndexFormatError: {
            "larger than": make_huge,
            "the index type": lambda index: seal(index, lambda body: {**body, "index": "\ud800"}),
        },
    }
)
def test_a_manifest_that_is_huge_or_names_no_type_is_refused(index: Path, refused: Refusal) -> None:
    refused.then(use, index)


POINTERS = [
    "../../etc",
    "v1; rm",
    "/etc/passwd",
    "",
    "v000002",
    "v000002-xyz",
    "v" + "9" * 100,
    "\0",
    "v000001-00000000",
]


@pytest.mark.parametrize("pointer", POINTERS)
@pytest.mark.parametrize("call", [use, add])
def test_a_hostile_pointer_is_refused(
    index: Path, call: Callable[[Path], object], pointer: str
) -> None:
    (index / "current").write_text(pointer)
    with pytest.raises(IndexFormatError):
        call(index)


def test_files_of_another_index_are_refused(index: Path, tmp_path: Path) -> None:
    """Datasets, and FAISS files, of another build at the same names."""
    build_index(make_documents(30, seed=4), tmp_path / "other", model=FakeEmbedder(), index="HNSW8")
    shutil.rmtree(index / "texts")
    shutil.copytree(tmp_path / "other" / "texts", index / "texts")
    with pytest.raises(IndexFormatError):
        use(index)
    assert verify_index(index).problems


def test_the_lock_of_a_hostile_folder_is_only_read_so_far(index: Path) -> None:
    (index / "lock").touch()
    endless(index / "lock", "sparse")
    add(index)
    use(index)
