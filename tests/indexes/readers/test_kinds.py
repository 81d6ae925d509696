"""All kinds of files: in one index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Retriever, build_index
from tests.indexes.fake import FakeEmbedder
from tests.indexes.files import make_pdf, make_pptx, make_xlsx

if TYPE_CHECKING:
    from pathlib import Path

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
    report = build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    assert (report.documents, report.rejected) == (4, 1)
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder(), verify=True) as retriever:
        hit = retriever.search("cherries", k=1, mode="lexical")[0]
        assert (hit.id, hit.page_label, hit.metadata["type"]) == ("talk.srt", "0:00:01", "subtitles")
