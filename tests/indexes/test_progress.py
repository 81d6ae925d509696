"""A notebook shows a bar of what takes long; other programs show nothing unless they ask for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Index, Report, build_index, copy_index, sync_index
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes import progress
from tests import one_change
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = make_documents(30)


@dataclass
class Publisher:
    """What IPython's `DisplayPublisher` was given: bars by their names."""

    bars: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def publish(self, data: dict[str, str], *, transient: dict[str, str], update: bool) -> None:
        name = transient["display_id"]
        assert update == (name in self.bars), "a bar is shown once, then written anew"
        self.bars.setdefault(name, []).append(data)

    def lines(self) -> list[str]:
        """The lines of the only bar."""
        (bar,) = self.bars.values()
        return [data["text/plain"] for data in bar]


def run_in(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    publisher = Publisher()
    run_in(SimpleNamespace(config={"IPKernelApp": {}}, display_pub=publisher), monkeypatch)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "UPDATE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    return publisher


def made(root: Path) -> Path:
    build_index(ROWS, root, model=FakeEmbedder(), progress=lambda *_: None)
    return root


CHANGES: dict[str, Callable[[Path], object]] = {
    "build": lambda place: build_index(ROWS, place / "new", model=FakeEmbedder()),
    "add": lambda place: one_change.add(
        make_documents(5, first=100), made(place / "ix"), model=FakeEmbedder()
    ),
    "metadata": lambda place: one_change.update_metadata(made(place / "ix"), {"x": 1}, where={}),
    "compact": lambda place: one_change.compact(made(place / "ix")),
    "copy": lambda place: copy_index(made(place / "ix"), place / "copy"),
    "open": lambda place: Index.open(made(place / "ix"), model=FakeEmbedder()).upsert(
        make_documents(5, first=100)
    ),
}
SHOWN = {"build", "add", "compact", "copy", "open"}  # new metadata alone has no stages


@pytest.mark.parametrize("name", CHANGES)
def test_a_notebook_shows_one_bar_for_each_change(
    name: str, notebook: Publisher, tmp_path: Path
) -> None:
    CHANGES[name](tmp_path)
    assert len(notebook.bars) == (name in SHOWN)
    if name in SHOWN:
        assert ", done after 0 s" in notebook.lines()[-1]
        assert all("after" not in line for line in notebook.lines()[:-1])


def test_a_bar_says_how_far_each_stage_is(notebook: Publisher, tmp_path: Path) -> None:
    build_index(ROWS, tmp_path / "ix", model=FakeEmbedder())
    lines = notebook.lines()
    assert lines[0] == "encoding: 0 of 30, 0 s"
    assert any(line.startswith("encoding: 30 of 30, ") and "tokens" in line for line in lines)
    assert any(line.startswith("indexing words") for line in lines)
    (bar,) = notebook.bars.values()
    assert bar[0]["text/html"] == f'<progress value="0" max="30"></progress> {lines[0]}'


def test_a_folder_is_compared_encoded_and_built_under_one_bar(
    notebook: Publisher, tmp_path: Path
) -> None:
    folder = tmp_path / "<b>"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"word{number}", encoding="utf-8")
    sync_index(folder, tmp_path / "ix", model=FakeEmbedder())
    assert len(notebook.bars) == 1
    notebook.bars.clear()
    (folder / "new.txt").write_text("word9", encoding="utf-8")
    sync_index(folder, tmp_path / "ix", model=FakeEmbedder())
    stages = {line.partition(":")[0] for line in notebook.lines()}
    assert {"comparing", "encoding"} <= stages


def test_a_bar_of_a_change_that_fails_stops(notebook: Publisher, tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield from ROWS
        yield {"_id": "x", "text": 7}  # type: ignore[dict-item]

    with pytest.raises(InputError):
        build_index(rows(), tmp_path / "ix", model=FakeEmbedder())
    assert "stopped after" in notebook.lines()[-1]


def test_stages_and_words_are_text_in_a_notebook(notebook: Publisher) -> None:
    with progress.shown(None) as show:
        show("reading <img src=x>", 1, None, 2)
    (bar,) = notebook.bars.values()
    assert "<img" not in bar[0]["text/html"]
    assert bar[0]["text/plain"] == "reading <img src=x>: 1, 2 tokens, 0 s"


def test_what_is_over_soon_and_what_was_shown_just_now_are_not_shown(
    notebook: Publisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 60.0)
    build_index(ROWS, tmp_path / "ix", model=FakeEmbedder())
    assert not notebook.bars
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "UPDATE_SECONDS", 60.0)
    with progress.shown(None) as show:
        for done in range(100):
            show("encoding", done, 100, 0)
    assert notebook.lines() == ["encoding: 0 of 100, 0 s", "encoding: 99 of 100, done after 0 s"]


def test_a_function_that_is_given_is_called_instead(notebook: Publisher, tmp_path: Path) -> None:
    stages: list[str] = []
    report = build_index(
        ROWS,
        tmp_path / "ix",
        model=FakeEmbedder(),
        progress=lambda stage, done, total, tokens: stages.append(stage),
    )
    assert isinstance(report, Report)
    assert "encoding" in stages
    assert not notebook.bars


@pytest.mark.parametrize("shell", [None, SimpleNamespace(config={"TerminalIPythonApp": {}})])
def test_no_other_program_shows_a_bar(
    shell: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_in(shell, monkeypatch)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    build_index(ROWS, tmp_path / "ix", model=FakeEmbedder())
    assert capfd.readouterr() == ("", "")
