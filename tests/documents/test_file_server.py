"""Folders of a file server: what is left out, how names are found, kinds of files."""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.folders import list_folder, words_of_path
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Notice, Record, Rejected
from aveyb_retrieval.errors import ConfigError
from tests.documents.conftest import reason
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.documents.conftest import Read


def put(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def ids(folder: Path, **options: Any) -> list[str]:
    return [file.id for file in list_folder(folder, Reading(**options)).files]


def records(folder: Path, **options: Any) -> dict[str, Record]:
    items = read_corpus(folder, Reading(**options))
    return {item.id: item for item in items if isinstance(item, Record)}


TREE: dict[str, str | bytes] = {
    "plan.md": "a",
    "plan.draft.md": "b",
    "old/plan.md": "c",
    "sub/old/plan.md": "d",
    "sub/keep/e.txt": "e",
    "sub/keep/f.txt": "f",
}


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (("old/",), ["plan.draft.md", "plan.md", "sub/keep/e.txt", "sub/keep/f.txt"]),
        (
            ("/old/", "*.draft.md"),
            ["plan.md", "sub/keep/e.txt", "sub/keep/f.txt", "sub/old/plan.md"],
        ),
        (("sub/**", "!plan.md"), ["old/plan.md", "plan.draft.md", "plan.md"]),
        (("# a comment", "", "[pq]lan*"), ["sub/keep/e.txt", "sub/keep/f.txt"]),
    ],
)
def test_patterns_leave_files_out(
    tmp_path: Path, patterns: tuple[str, ...], left: list[str]
) -> None:
    folder = put(tmp_path / "docs", TREE)
    assert ids(folder, exclude=patterns) == left
    (folder / ".aveybignore").write_text("\n".join(patterns))
    assert ids(folder) == left


def test_a_folder_below_may_hold_patterns_too(tmp_path: Path) -> None:
    folder = put(
        tmp_path / "docs", {**TREE, ".aveybignore": "*.txt", "sub/keep/.aveybignore": "!e.txt"}
    )
    assert "sub/keep/e.txt" in ids(folder)
    assert "sub/keep/f.txt" not in ids(folder)
    assert "sub/keep/e.txt" not in ids(folder, exclude=("keep/",))


BAD_PATTERNS = ["!", "a\\", "[z-a]", "[bad", "*.t[xt", "[]", "[!]x", "[[:alpha:]].md", "***"]
BAD_PATTERNS += ["*a*a*a*a*a", "**/a/**/b/**/c/*/d/*"]


@pytest.mark.parametrize("bad", BAD_PATTERNS)
def test_a_line_that_is_no_pattern_costs_itself(tmp_path: Path, bad: str) -> None:
    folder = put(tmp_path / "docs", {**TREE, ".aveybignore": f"old/\n{bad}\n*.txt\n"})
    assert ids(folder) == ["plan.draft.md", "plan.md"]
    notices = [
        n for n in list_folder(folder).notices if n.path.endswith(".aveybignore") and not n.harmless
    ]
    assert [n.reason for n in notices] == [f"line 2: {bad!r} is not a pattern, and is passed over"]
    with pytest.raises(ConfigError, match="is not a pattern"):
        build_index(folder, tmp_path / "ix", model=FakeEmbedder(), exclude=[bad])
    with pytest.raises(ConfigError, match="list of patterns"):
        build_index(folder, tmp_path / "ix", model=FakeEmbedder(), exclude="old/")


def test_many_lines_that_are_no_patterns_are_one_notice(tmp_path: Path) -> None:
    lines = ["[" + "x" * 200, "# no [ pattern", "*.txt", "[", r"\[old", "[[]old", "[a"]
    folder = put(tmp_path / "docs", {**TREE, ".aveybignore": "\n".join(lines)})
    assert "plan.md" in ids(folder) and not any(name.endswith(".txt") for name in ids(folder))
    (reason,) = (n.reason for n in list_folder(folder).notices if not n.harmless)
    assert reason.startswith("3 lines are no patterns, and are passed over; line 1: '[xxx")
    assert len(reason) < 200


def test_a_sync_keeps_what_the_build_was_given(tmp_path: Path) -> None:
    folder, root, model = put(tmp_path / "docs", TREE), tmp_path / "ix", FakeEmbedder()
    put(folder, {"n.txt": "Br\u00fccke".encode("cp1252")})
    build_index(folder, root, model=model, exclude=["old/"], encoding="cp1252", max_line=100)
    put(folder, {"old/g.md": "g", "new.md": "n", "long.txt": "x" * 101})
    put(folder, {"n.txt": "T\u00fcr".encode("cp1252")})
    report = sync_index(folder, root, model=model)
    assert (report.added, report.replaced, report.deleted) == (1, 1, 0)
    with Retriever.load(root, model=model) as retriever:
        assert retriever.get(["n.txt"])[0].text == "T\u00fcr"
        assert retriever.count({"path": {"$contains": "old"}}) == 0


def test_patterns_of_a_sync_replace_those_of_the_build(tmp_path: Path) -> None:
    folder = put(tmp_path / "docs", {"a.md": "a", "old/b.md": "b", "tmp/c.md": "c"})
    root, model = tmp_path / "ix", FakeEmbedder()
    build_index(folder, root, model=model, exclude=["old/"])
    for options in ({"exclude": ["tmp/"]}, {}):  # the second sync keeps those of the first
        sync_index(folder, root, model=model, **options)
        with Retriever.load(root, model=model) as retriever:
            assert {document.id for document in retriever.documents()} == {"a.md", "old/b.md"}


def test_names_are_words_of_a_document_and_follow_it(tmp_path: Path) -> None:
    name = "Kessler Foods/PileSchedule_revC.md"
    folder = put(tmp_path / "docs", {name: "# Overview\n\nDepth 12 m.\n", "b.md": "# B\n\nlunch\n"})
    root, model = tmp_path / "ix", FakeEmbedder()
    build_index(folder, root, model=model)
    for query in ("kessler", "schedule", "PileSchedule"):
        with Retriever.load(root, model=model, verify=True) as retriever:
            assert [hit.id for hit in retriever.search(query, mode="lexical")] == [name]
    (folder / name).rename(put(folder, {"Harbour/x.txt": "x"}) / "Harbour" / "Pile.md")
    (folder / "Harbour/x.txt").unlink()
    encoded = model.encoded_words
    report = sync_index(folder, root, model=model)
    assert (report.renamed, report.replaced, model.encoded_words) == (1, 0, encoded)
    with Retriever.load(root, model=model, verify=True) as retriever:
        assert [hit.id for hit in retriever.search("harbour", mode="lexical")] == [
            "Harbour/Pile.md"
        ]
        assert not retriever.search("kessler", mode="lexical")


def test_words_of_a_path() -> None:
    assert words_of_path("a.txt", "a") == ""
    assert words_of_path("/home/me/Lease 2024.pdf", "Contract") == "Lease 2024"
    assert words_of_path("x/y_z.txt.gz", "") == "x y z"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_both_forms_of_an_accent_find_a_file(tmp_path: Path, form: Any) -> None:
    typed = "Pr\u00fcfbericht.md"
    folder = put(
        tmp_path / "docs",
        {
            unicodedata.normalize(form, typed): "# Bearings\n\nGreased.\n",
            "metadata.csv": f"path,team\n{typed},quay\n",
        },
    )
    build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        for name in (typed, unicodedata.normalize("NFD", typed)):
            assert retriever.get([name])[0].metadata["team"] == "quay"
            assert (
                retriever.count({"path": name}) == retriever.count({"path": {"$in": [name]}}) == 1
            )
            assert retriever.search(name.removesuffix(".md"), mode="lexical")


def test_labelled_files_keep_the_hash_of_their_bytes(tmp_path: Path) -> None:
    folder = put(tmp_path / "docs", {"hr/a.txt": "pay", "metadata.csv": "path,year\n*.txt,2024\n"})
    record = records(folder, path_fields="{team}/*")["hr/a.txt"]
    plain = records(put(tmp_path / "plain", {"a.txt": "pay"}))["a.txt"]
    assert record.origin is not None and plain.origin is not None
    assert record.origin.sha256 == plain.origin.sha256
    assert record.origin.labels_sha256 and not plain.origin.labels_sha256


def test_front_matter_is_found_and_keeps_all_of_its_names(tmp_path: Path) -> None:
    page = (
        "---\ntype: policy\npath: /hr\nphone: '+44 1632 960'\ntags: [weir, 17]\ndraft: true\n---\n"
        "# Olga\n"
    )
    record = records(put(tmp_path / "docs", {"o.md": page, "p.md": "# P\n"}))["o.md"]
    assert (record.metadata["type"], record.metadata["own_type"]) == ("markdown", "policy")
    assert (record.metadata["path"], record.metadata["own_path"]) == ("o.md", "/hr")
    build_index(tmp_path / "docs", tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        for query in ("1632", "weir", "policy", "17"):
            assert [hit.id for hit in retriever.search(query, mode="lexical")] == ["o.md"], query


def test_files_without_a_suffix_are_read_where_they_are_texts(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "README": "first",
        "Minutes of 3. May": "second",
        "utf16": "third".encode("utf-16"),
        "blob": b"\x7fELF\x00\xff" * 9,
        "x.unknown": "fourth",
        "void": b"",
    }
    folder = put(tmp_path / "docs", files)
    assert sorted(records(folder)) == ["Minutes of 3. May", "README", "utf16"]
    reasons = {
        notice.path.rpartition("/")[2]: notice.reason for notice in list_folder(folder).notices
    }
    assert reasons == {
        "blob": "no suffix, and not a text",
        "x.unknown": "unknown kind .unknown",
        "void": "empty",
    }


def test_empty_files_are_called_empty(tmp_path: Path, read: Read) -> None:
    folder = put(tmp_path / "docs", {"a.pdf": b"", "b.docx": b"", "c.txt": b"", "d.txt": "d"})
    items = list(read_corpus(folder))
    assert [i.reason for i in items if isinstance(i, Notice)] == ["empty"] * 3
    assert not [i for i in items if isinstance(i, Rejected)]
    assert reason(read, "e.zip", b"") == "empty"


def test_a_corpus_beside_other_files_is_told(tmp_path: Path) -> None:
    line = '{"_id": "d1", "text": "zinc"}\n'
    mixed = put(tmp_path / "mixed", {"corpus.jsonl": line, "contract.md": "lead"})
    assert "contract.md" in records(mixed)
    assert list(records(put(tmp_path / "beir", {"corpus.jsonl": line, "queries.jsonl": ""}))) == [
        "d1"
    ]


def test_a_glob_reads_each_file_once(tmp_path: Path) -> None:
    folder = put(tmp_path / "docs", {"a.md": "a", "law/b.md": "b", "law/deep/c.md": "c"})
    for pattern in ("**", "*", "**/*"):
        texts = [i.text for i in read_corpus(f"{folder}/{pattern}") if isinstance(i, Record)]
        assert sorted(texts) == ["a", "b", "c"], pattern


def test_the_text_of_xml(read: Read) -> None:
    pytest.importorskip("lxml")
    page = (
        '<?xml version="1.0" encoding="iso-8859-1"?><!-- no -->'
        '<a:doc xmlns:a="urn:x"><head a:x="attribute">'
        "<t>T\xfcr &amp; Tor</t><n/></head><p>One <b>bold</b><!-- c -->er word</p>"
        "<list><i>1</i><i>2</i></list></a:doc>"
    )
    assert read("a.xml", page.encode("latin-1")).text == "T\xfcr & Tor\n\nOne bolder word\n1\n2"
    assert reason(read, "a.xml", b"<a><b></a>").startswith("damaged")
    bomb = b'<!DOCTYPE a [<!ENTITY e "x">]><a><b>&e; word</b></a>'
    found = read("a.xml", bomb)
    assert (found.text, found.warning) == ("word", "1 reference to an entity not resolved")


def test_cards(read: Read) -> None:
    card = (
        "BEGIN:VCARD\r\nVERSION:2.1\r\n"
        "N;CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:M=C3=BCll=\r\ner;Ol=\r\nga\r\n"
        "ORG:Harbour\\, Works;Quay\r\nitem1.TEL;TYPE=cell:+44 1632\r\n"
        "PHOTO;ENCODING=b:/9j/4AAQ\r\n AAAA\r\n"
        "NOTE:keeps\\nthe keys\r\nEND:VCARD\r\nBEGIN:VCARD\r\nFN:Ben\r\nEND:VCARD\r\n"
    )
    assert read("a.vcf", card.encode()).text == (
        "# Olga M\u00fcller\n\nOrganization: Harbour, Works, Quay\nTelephone: +44 1632\n"
        "keeps\nthe keys\n\n# Ben\n"
    )
    assert reason(read, "a.vcf", b"hello") == "not a vCard"


def test_exports_of_slack_and_teams(tmp_path: Path) -> None:
    pytest.importorskip("selectolax")
    users = [{"id": "U1", "name": "anna", "profile": {"real_name": "Anna Lind"}}]
    said = [
        {
            "type": "message",
            "user": "U1",
            "ts": "1714554000.0001",
            "text": "<@U1> see <https://a.example|the plan> &amp; go",
        },
        {
            "type": "message",
            "subtype": "bot_message",
            "username": "crane",
            "ts": "1714554060.0",
            "text": "",
            "attachments": [{"title": "Alarm", "text": "gallium low"}],
        },
    ]
    sent = {
        "createdDateTime": "2024-04-02T10:00:00+02:00",
        "from": {"user": {"displayName": "Marta"}},
        "body": {"contentType": "html", "content": "<p>No <b>4471</b></p>"},
        "replies": [
            {
                "createdDateTime": "2024-04-02T09:00:00Z",
                "from": None,
                "body": {"contentType": "text", "content": "ok <x>"},
            }
        ],
    }
    folder = put(
        tmp_path / "docs",
        {
            "slack/users.json": json.dumps(users),
            "slack/channels.json": "[]",
            "slack/quay/2024-05-01.json": json.dumps(said),
            "teams/Permits.json": json.dumps({"value": [sent]}),
            "other.json": '[{"text": "a document"}]',
        },
    )
    found = records(folder)
    assert sorted(found) == ["slack/quay/2024-05-01.json", "teams/Permits.json"]
    slack, teams = found["slack/quay/2024-05-01.json"], found["teams/Permits.json"]
    assert slack.text.strip() == (
        "Anna Lind, 2024-05-01 09:00 UTC: @Anna Lind see the plan (https://a.example) & go\n\n"
        "crane, 2024-05-01 09:01 UTC: Alarm\ngallium low"
    )
    assert (slack.title, slack.metadata["channel"], slack.metadata["senders"]) == (
        "quay 2024-05-01",
        "quay",
        ["Anna Lind", "crane"],
    )
    assert (
        teams.text.strip() == "Marta, 2024-04-02 08:00 UTC: No 4471\n\n2024-04-02 09:00 UTC: ok <x>"
    )
    reasons = [n.reason for n in list_folder(folder).notices if not n.harmless]
    assert reasons == [".json holds many documents: index it by itself"]
