"""What is no sound index of this format: one line that says what and what to do, and nothing
outside is touched.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from aveyb_retrieval import Index, Retriever, build_index, verify_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.store.manifest import FORMAT_VERSION
from aveyb_retrieval.indexes.store.place import describe
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.disk import files_of, manifest_path, rewrite_manifest
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with every kind of file: FAISS files, deleted rows, what was left out, token
    vectors.
    """
    root = tmp_path_factory.mktemp("sound") / "ix"
    build_index(make_documents(50), root, model=FakeEmbedder(), index="SQ8", token_vectors="int8")
    one_change.delete(root, ["doc-3", "doc-4"])
    bad: list[Any] = [*make_documents(3, first=60), {"_id": "no text"}]
    one_change.upsert(bad, root, model=FakeEmbedder(), on_error="skip")
    return root


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "ix")


USES: dict[str, Callable[[Path], object]] = {
    "load": lambda root: Retriever.load(root, model=FakeEmbedder()),
    "open": lambda root: Index.open(root, model=FakeEmbedder()),
    "describe": describe,
    "add": lambda root: one_change.add([{"_id": "new", "text": "x"}], root, model=FakeEmbedder()),
    "upsert": lambda root: one_change.upsert(
        [{"_id": "new", "text": "x"}], root, model=FakeEmbedder()
    ),
    "delete": lambda root: one_change.delete(root, ["doc-1"]),
    "update": lambda root: one_change.update_metadata(root, {"a": 1}, ["doc-1"]),
    "compact": one_change.compact,
    "vectors": lambda root: build_index(None, root.parent / "again", vectors=root),
}


def told(use: Callable[[Path], object], root: Path) -> str:
    """The one line with which a use of an index fails."""
    with pytest.raises(AveyBError) as caught:
        use(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run(*arguments: object) -> tuple[int, str]:
    """The exit code of `aveyb-index`, and what it writes to standard error."""
    result = CliRunner().invoke(
        main, [str(argument) for argument in arguments], catch_exceptions=False
    )
    return result.exit_code, result.stderr


# --- older formats -------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An index directory as formats 1 and 2 had it."""
    root = tmp_path / "old"
    (root / "v000007" / "vectors").mkdir(parents=True)
    (root / "v000007" / "manifest.json").write_text(
        json.dumps({"format": request.param, "checksum": "0"})
    )
    (root / "v000007" / "store.sqlite").write_bytes(b"SQLite format 3\0")
    (root / "current").write_text("v000007\n")
    (root / "lock").touch()
    return root


@pytest.mark.parametrize("use", USES)
def test_an_index_of_an_older_format_is_to_be_built_again(old: Path, use: str) -> None:
    before = files_of(old)
    assert "an index of format 1 or 2, which is not read any more; build it again" in told(
        USES[use], old
    )
    assert files_of(old) == before


def test_a_command_on_an_older_format_ends_with_exit_code_2(old: Path, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"_id": "a", "text": "b"}\n')
    before = files_of(old)
    commands: list[tuple[object, ...]] = [
        (name, old) for name in ("info", "count", "compact", "verify", "list")
    ]
    commands += [("search", old, "q"), ("add", old, tmp_path / "c.jsonl"), ("delete", old, "a")]
    commands += [("build", tmp_path / "c.jsonl", "-o", old), ("verify", old, "--repair")]
    for command in commands:
        code, said = run(*command)
        assert (code, len(said.strip().splitlines()), "build it again" in said) == (
            2,
            1,
            True,
        ), command
    assert files_of(old) == before


def test_an_index_of_a_format_to_come_is_refused(root: Path) -> None:
    rewrite_manifest(root, lambda body: body.update(format=FORMAT_VERSION + 1))
    for use in USES.values():
        reason = f"format {FORMAT_VERSION + 1}, this version of the package reads {FORMAT_VERSION}"
        assert reason in told(use, root)


# --- missing and damaged -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["documents.lance", "texts", "passages", "words", "faiss", "versions"]
)
def test_a_folder_that_is_missing_is_told(root: Path, name: str) -> None:
    shutil.rmtree(root / name)
    assert name in told(USES["load"], root)
    if name not in ("faiss", "words"):  # vectors are read from the tables
        assert name in told(USES["vectors"], root)
    problems = verify_index(root).problems
    assert problems
    assert all(name in problem or "which is not there" in problem for problem in problems)


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_every_file_of_an_index_is_missed_cut_or_changed_by_name(
    root: Path, tmp_path: Path, damage: str
) -> None:
    for name in sorted(json.loads(manifest_path(root).read_text())["files"]):
        copy = shutil.copytree(root, tmp_path / "copy")
        data = (copy / name).read_bytes()
        if damage == "missing":
            (copy / name).unlink()
        elif damage == "cut":
            (copy / name).write_bytes(data[: len(data) // 2])
        else:
            (copy / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert name in told(USES["load"], copy)
        assert any(name in problem for problem in verify_index(copy).problems)
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    "pattern",
    ["faiss/document-*", "faiss/passage-*", "*.lance/_indices/*/*", "words/*", "rejected/*"],
)
def test_what_can_be_made_again_is_repaired(root: Path, pattern: str) -> None:
    for path in root.glob(pattern):
        path.write_bytes(b"nothing")
    with_repair = verify_index(root, repair=True)
    assert with_repair.problems
    assert with_repair.repaired
    assert problems_of(root) == []
    with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
        assert retriever.search("word1 word2", k=5)


@pytest.mark.parametrize(
    "pattern", ["documents.lance/data/*", "texts/*", "passages/*", "documents.lance/_deletions/*"]
)
def test_what_has_no_second_copy_is_not_repaired(root: Path, pattern: str) -> None:
    path = next(root.glob(pattern))
    path.write_bytes(b"nothing")
    verdict = verify_index(root, repair=True)
    assert not verdict.repaired
    assert any(path.name in problem for problem in verdict.problems)


def test_a_pointer_that_names_nothing_is_told_and_repaired(root: Path) -> None:
    name = (root / "current").read_text()
    for text in (
        "",
        "nothing\n",
        "../../etc/passwd",
        "v000009-00000000\n",
        "v000001-XYZ",
        "\xff" * 70,
    ):
        (root / "current").write_text(text)
        assert str(root) in told(USES["load"], root)
        assert verify_index(root).problems
        assert verify_index(root, repair=True).repaired
        assert (root / "current").read_text() == name


def test_a_manifest_that_is_none_is_told(root: Path) -> None:
    path = manifest_path(root)
    whole = path.read_text()
    changed = (whole[:-1], whole.replace("1", "2", 1))
    for text in ("", "{", "[]", "{}", *changed, "[" * 100_000, '{"format": 4}', "\x00" * 99):
        path.write_text(text)
        assert path.name in told(USES["load"], root)
        assert path.name in told(USES["delete"], root)
    path.unlink()
    assert path.name in told(USES["load"], root)


# --- a manifest by another hand ------------------------------------------------------------------

FOREIGN = [
    "../outside",
    "faiss/../../outside",
    "/etc/passwd",
    "outside",
    "",
    "faiss",
    "faiss/",
    "faiss//x",
    "faiss/./x",
    "faiss/..",
    "faiss/\0",
    "faiss/a b",
    "~/x",
    "versions/x.json",
    "current",
    "documents.lance/../../outside",
    "documents.lance/data/../../../outside",
    "elsewhere/x",
    "faiss/a/b/c/d/e",
    "faiss\\..\\outside",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_manifest_that_names_files_elsewhere_is_refused(root: Path, name: str) -> None:
    outside = root.parent / "outside"
    outside.write_text("precious")
    rewrite_manifest(
        root, lambda body: body["files"].update({name: {"bytes": 8, "sha256": "0" * 64}})
    )
    for use in USES.values():
        assert "which is no file of an index" in told(use, root)
    assert outside.read_text() == "precious"


def set_tier(body: dict[str, Any], **values: Any) -> None:
    body["tiers"][0].update(values)


CONTRADICTIONS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda body: body.update(build="../../x"), "version"),
    (lambda body: body.update(number=8), "it is of the version v000008"),
    (lambda body: body["encoding"].update(dim=0), "dimension 0"),
    (lambda body: body["encoding"].update(dim=1 << 40), "dimension"),
    (lambda body: body["encoding"].update(granularity="word"), "granularity"),
    (lambda body: body["encoding"].update(model={"name": 3}), "the description of the model"),
    (lambda body: body["tables"]["rows"].pop("texts"), "the tables"),
    (lambda body: body["tables"].update(documents=-1), "the tables"),
    (lambda body: body["tables"]["rows"]["texts"][0].update(file="../outside"), "it does not list"),
    (lambda body: body["tables"]["rows"]["texts"][0].update(stop=1 << 50), "the range of"),
    (lambda body: body["tables"]["words"]["texts/words"][0].update(first=-9), "the range of"),
    (lambda body: body["counts"].update(documents=-1), "a negative count"),
    (lambda body: body["counts"].update(documents="many"), "documents"),
    (lambda body: body.update(next_doc=0), "a negative count"),
    (lambda body: body.update(files=[]), "files"),
    (lambda body: set_tier(body, file="../outside"), "it does not list"),
    (lambda body: set_tier(body, first=9, stop=3), "the range of"),
    (lambda body: set_tier(body, stop=1 << 50), "the range of"),
    (lambda body: set_tier(body, dead=1 << 50), "the range of"),
    (lambda body: set_tier(body, kind="word"), "kind"),
]


@pytest.mark.parametrize(("change", "words"), CONTRADICTIONS, ids=range(len(CONTRADICTIONS)))
def test_a_manifest_that_contradicts_itself_is_refused(root: Path, change: Any, words: str) -> None:
    rewrite_manifest(root, change)
    for use in USES.values():
        assert words in told(use, root)


def test_a_version_of_a_dataset_that_is_not_there_is_told(root: Path) -> None:
    rewrite_manifest(root, lambda body: body["tables"].update(documents=77))
    for name in ("load", "delete", "compact", "vectors"):
        assert "documents.lance" in told(USES[name], root)


# --- links ---------------------------------------------------------------------------------------

LINKED = [
    "current",
    "lock",
    "journal.json",
    "versions",
    "faiss",
    "rejected",
    "documents.lance",
    "texts",
    "words",
    "documents.lance/_versions",
    "documents.lance/_indices",
    "documents.lance/_deletions",
]


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("use", ["add", "upsert", "delete", "update", "compact"])
def test_a_link_in_an_index_never_leads_a_writer_outside(
    root: Path, tmp_path: Path, name: str, use: str
) -> None:
    outside, path = tmp_path / "outside", root / name
    if path.is_dir():
        path.rename(outside)
        path.symlink_to(outside, target_is_directory=True)
    else:
        outside.write_bytes(path.read_bytes() if path.exists() else b"precious")
        path.unlink(missing_ok=True)
        path.symlink_to(outside)
    before = {
        found: (tmp_path / found).read_bytes()
        for found in files_of(tmp_path)
        if found.startswith("outside")
    }
    try:
        USES[use](root)
    except IndexFormatError as error:
        assert "not a plain file; an index has no links, devices or pipes in it: remove it" in str(
            error
        )
    after = {
        found: (tmp_path / found).read_bytes()
        for found in files_of(tmp_path)
        if found.startswith("outside")
    }
    assert after == before


def test_a_file_of_an_index_that_is_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    for name in sorted(json.loads(manifest_path(root).read_text())["files"]):
        kept = (root / name).rename(tmp_path / "kept")
        (root / name).symlink_to(kept)
        assert name in told(USES["load"], root)
        assert "not a plain file" in told(USES["delete"], root)
        (root / name).unlink()
        kept.rename(root / name)
    assert verify_index(root).problems == []


def test_pipes_in_an_index_are_not_waited_for(root: Path) -> None:
    for name in (
        "current",
        "lock",
        "journal.json",
        "faiss/planted",
        f"versions/{manifest_path(root).name}",
    ):
        kept = (root / name).read_bytes() if (root / name).exists() else None
        (root / name).unlink(missing_ok=True)
        os.mkfifo(root / name)
        assert "not a plain file" in told(USES["delete"], root)
        (root / name).unlink()
        if kept is not None:
            (root / name).write_bytes(kept)
    assert verify_index(root).problems == []
