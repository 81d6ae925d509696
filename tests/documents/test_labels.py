"""Metadata of files: by their paths, by a file beside them, by what they say of themselves; a sync
follows them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.documents import folders
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.folders import list_folder, matches, path_pattern
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Record
from aveyb_retrieval.errors import ConfigError, InputError
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from pathlib import Path

    from tests.documents.conftest import Read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("sales/2024/a.txt", "sales/2024/deep/b.txt", "law/c.md"):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"words of {name}")
    return tmp_path / "docs"


def metadata(folder: Path, path_fields: str | None = None) -> dict[str, dict[str, Any]]:
    found = {}
    for item in read_corpus(folder, Reading(path_fields=path_fields)):
        if isinstance(item, Record):
            own = {
                key: value
                for key, value in item.metadata.items()
                if key not in ("path", "type", "modified")
            }
            found[item.id] = own | ({"title": item.title} if item.title == "Lease" else {})
    return found


def test_paths_become_fields(folder: Path) -> None:
    assert metadata(folder, "{team}/{year}/*") == {
        "law/c.md": {},
        "sales/2024/a.txt": {"team": "sales", "year": "2024"},
        "sales/2024/deep/b.txt": {"team": "sales", "year": "2024"},
    }
    assert metadata(folder, "**/{name}.md")["law/c.md"] == {"name": "c"}


@pytest.mark.parametrize("pattern", ["*", "{path}/*", "{a}/{a}", "{1}/*", "{}"])
def test_a_pattern_without_fields_of_its_own_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="path_fields"):
        path_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.md", ["a.md"]),
        ("x/", ["x/a.md", "x/y/b.pdf"]),
        ("*.pdf", ["x/y/b.pdf"]),
        ("x/*.md", ["x/a.md"]),
        ("**/b.pdf", ["x/y/b.pdf"]),
        ("x/**", ["x/a.md", "x/y/b.pdf"]),
        ("**/y/**/b.pdf", ["x/y/b.pdf"]),
        ("*", ["a.md", "x/a.md", "x/y/b.pdf"]),
    ],
)
def test_patterns_of_paths(pattern: str, names: list[str]) -> None:
    assert [name for name in ("a.md", "x/a.md", "x/y/b.pdf") if matches(name, pattern)] == names
    assert not matches("a/" * 500 + "b", "**/" * 50 + "c")  # in no time


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_of_metadata_labels_the_others(folder: Path, kind: str) -> None:
    rows = [{"path": "sales/", "team": "S", "open": True}, {"path": "gone.txt", "team": "?"},
            {"path": "sales/2024/a.txt", "title": "Lease", "open": False}]  # fmt: skip
    if kind == "csv":
        text = "path,team,open,title\nsales/,S,true,\nsales/2024/a.txt,,false,Lease\ngone.txt,?,,\n"
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"metadata.{kind}").write_text(text)
    assert metadata(folder) == {
        "law/c.md": {},
        "sales/2024/a.txt": {"team": "S", "open": False, "title": "Lease"},
        "sales/2024/deep/b.txt": {"team": "S", "open": True},
    }
    reasons = {notice.reason for notice in list_folder(folder).notices}
    assert any("no file is 'gone.txt'" in reason for reason in reasons)


def test_lines_about_one_file_each_are_looked_up_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.txt" for number in range(200)]
    lines = [f"{name},{number}" for number, name in enumerate([*names, *names])]
    for name in names:
        (tmp_path / name).write_text("words")
    (tmp_path / "metadata.csv").write_text("\n".join(["path,number", *lines, "1*.txt,x"]) + "\n")
    tried = record_calls(monkeypatch, folders, "matches")
    found = metadata(tmp_path)
    assert found["7.txt"] == {"number": "207"}
    assert found["17.txt"] == {"number": "x"}
    assert {call["pattern"] for call in tried} == {"1*.txt"}


def test_a_table_of_another_purpose_is_a_sheet(folder: Path) -> None:
    (folder / "metadata.csv").write_text("key,value\na,b\n")
    assert "metadata.csv" in metadata(folder)


@pytest.mark.parametrize(
    "text", ["path,type\na.txt,x\n", "path,a\nb.txt\n", "path,a\n,b\n", "path,a,a\nb,c,d\n"]
)
def test_a_file_of_metadata_that_is_wrong_stops(folder: Path, text: str) -> None:
    (folder / "metadata.csv").write_text(text)
    with pytest.raises(InputError, match=r"metadata\.csv, line \d"):
        list_folder(folder)


def test_a_sync_follows_labels_though_files_stay(folder: Path, tmp_path: Path) -> None:
    model = FakeEmbedder()
    build_index(folder, tmp_path / "ix", model=model, path_fields="{team}/**")
    (folder / "metadata.csv").write_text("path,open\nlaw/,true\n")
    report = sync_index(folder, tmp_path / "ix", model=model, path_fields="{team}/**")
    assert (report.replaced, report.unchanged) == (1, 2) or report.replaced == 1
    with Retriever.load(tmp_path / "ix", model=model) as retriever:
        found = {document.id: document.metadata for document in retriever.documents()}
    assert found["law/c.md"]["open"] is True and found["law/c.md"]["team"] == "law"
    assert sync_index(folder, tmp_path / "ix", model=model, path_fields="{team}/**").replaced == 0


def test_front_matter_is_metadata_where_it_is_yaml_or_toml(read: Read) -> None:
    found = read(
        "a.md", b"---\ntitle: Backups\ntags: [tape, vault]\ndate: 2026-01-31\nn: {a: 1}\n---\ntext"
    )
    assert (found.title, found.text) == ("Backups", "text")
    assert found.metadata == {"tags": ["tape", "vault"], "date": "2026-01-31", "n": {"a": 1}}
    assert read("b.md", b'+++\ntitle = "T"\ndraft = true\n+++\nbody').metadata == {"draft": True}
    for rule in (
        "---\nNote: this.\n\nThe first part.\n\n---\nmore",
        "---\njust words\n---\n",
        "---\n- a\n- b\n---\n",
    ):
        assert read("c.md", rule.encode()).text == rule
    bomb = "---\na: &a [x, x]\nb: [*a, *a]\n---\ntext"
    assert read("d.md", bomb.encode()).text == bomb  # references could write gigabytes


def test_mails_have_metadata(read: Read) -> None:
    mail = b"From: A <a@b.org>\nTo: c@d.org\nCc: e@f.org\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\n"
    mail += b"Date: Sat, 31 Jan 2026 12:00:00 +0100\nMessage-ID: <1@b.org>\n\nbody"
    assert read("a.eml", mail).metadata == {
        "from": "A <a@b.org>", "to": "c@d.org", "cc": "e@f.org", "subject": "Gr\u00fc\u00dfe",
        "date": "2026-01-31T11:00:00+00:00", "date_written": "2026-01-31T12:00:00+01:00",
        "message_id": "<1@b.org>", "thread": "<1@b.org>",
        "addresses": ["a@b.org", "c@d.org", "e@f.org"],
    }  # fmt: skip
