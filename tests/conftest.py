"""Fixtures shared by the whole suite, and what happens to a test that needs a package which is not
installed.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval.indexes.model import load_model

if TYPE_CHECKING:
    from collections.abc import Generator

    from aveyb_retrieval.indexes.types import EmbedderLike

# no test needs a hub; without a network, one is waited for for a minute
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# No test cuts the power, and rigs/faults watches flushes in processes of its own: here a flush, a
# few milliseconds on most disks and tens of thousands of them, only asks whether the descriptor is
# open.
os.fsync = os.fstat
gc.disable()  # until all is collected: a search for garbage among what is imported finds none
SHARED = Path(__file__).resolve().parents[2] / "shared"
# What `make test-light` leaves out.
HEAVY = ("torch", "transformers", "sentence_transformers", "huggingface_hub", "onnx", "datasets")

# Begun first, so that no process works on a long file alone at the end: `make test` gives out files
# in this order.
LONGEST = (
    "server/test_page.py",
    "faults/test_system.py",
    "training",
    "faults/test_sizes.py",
    "indexes/test_versions.py",
    "indexes/nearest/test_nearest.py",
    "indexes/test_object_store.py",
    "indexes/test_update.py",
    "indexes/test_extremes.py",
    "attacks/test_server.py",
    "test_docs.py",
    "integrations",
    "fuzz",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first; the others stay in their order."""

    def place(item: pytest.Item) -> int:
        file = item.nodeid.removeprefix("tests/")
        return next(
            (number for number, name in enumerate(LONGEST) if file.startswith(name)), len(LONGEST)
        )

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected, half a million objects, out of every later search for
    garbage.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def embedded() -> EmbedderLike:
    """The embedded model, loaded once for all tests that name none: as long as somebody uses it, it
    is shared.
    """
    return load_model(None)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; tests that need it are skipped where it is
    absent.
    """
    if not SHARED.is_dir():
        pytest.skip(f"reference data not found at {SHARED}")
    return SHARED


def missing(error: BaseException | None) -> str | None:
    """The heavy package whose absence an exception comes from."""
    while error is not None:
        name = (
            error.name.partition(".")[0]
            if isinstance(error, ModuleNotFoundError) and error.name
            else None
        )
        if name in HEAVY:
            return name
        error = error.__cause__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, Any, pytest.CollectReport]:
    report: pytest.CollectReport = yield
    call = getattr(report, "call", None)
    if report.failed and call is not None and (name := missing(call.excinfo.value)):
        report.outcome, report.longrepr = (
            "skipped",
            (str(collector.path), 0, f"Skipped: {name} is not installed"),
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    for mark in item.iter_markers("needs"):
        pytest.importorskip(*mark.args)
    return (yield from _skipped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _skipped())


def _skipped() -> Generator[None, Any, Any]:
    """Skip a test, or what it needs, in the place of an error because of a package that is not
    here.
    """
    try:
        return (yield)
    except Exception as error:
        if name := missing(error):
            pytest.skip(f"{name} is not installed")
        raise
