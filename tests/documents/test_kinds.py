"""All kinds of files: in one index, and in the table of docs/files.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.documents.readers.kinds import SUFFIXES, TABLES
from tests.indexes.fake import FakeEmbedder
from tests.indexes.files import make_pdf, make_pptx, make_xlsx, make_zip

for package in ("pypdfium2", "docx", "pptx", "python_calamine", "xlsxwriter", "tree_sitter"):
    pytest.importorskip(package)


def test_a_folder_of_all_kinds_is_one_index(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "show.pptx").write_bytes(make_pptx())
    (folder / "prices.xlsx").write_bytes(make_xlsx([["valve", 12]]))
    (folder / "tool.py").write_text("def close_valve():\n    # the valve\n    return 1\n")
    (folder / "talk.srt").write_text("1\n00:00:01,000 --> 00:00:04,000\ncherries are red\n")
    (folder / "lies.docx").write_bytes(make_pdf([["I am a PDF file"]]))
    (folder / "unread.zip").write_bytes(make_zip({"bad.pdf": b"x"}))
    report = build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    assert (report.documents, report.rejected) == (4, 2)
    assert report.rejected_file is not None
    assert "1 file in it left out: bad.pdf" in report.rejected_file.read_text()
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder(), verify=True) as retriever:
        hit = retriever.search("cherries", k=1, mode="lexical")[0]
        assert (hit.id, hit.page_label, hit.metadata["type"]) == (
            "talk.srt",
            "0:00:01",
            "subtitles",
        )


def test_the_page_has_the_suffixes_and_the_type_of_each_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf-8")
    listed: list[str] = []
    for suffixes, types in re.findall(r"^\| [^|]+ \| (`\.[^|]+) \| ([^|]+) \|", page, re.MULTILINE):
        found = re.findall(r"`(\.\w+)`", suffixes)
        assert list(
            dict.fromkeys({**SUFFIXES, **TABLES}[suffix] for suffix in found)
        ) == re.findall(r"`(\w+)`", types)
        listed += found
    assert sorted(listed) == sorted([*SUFFIXES, *TABLES])
