"""Open a data set by what a user names: a folder, a known name, or `NAME=FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval import hub
from aveyb_retrieval.eval.datasets import load_folder

if TYPE_CHECKING:
    from aveyb_retrieval.eval.datasets import Dataset


def load_dataset(data: str, split: str | None = None) -> Dataset:
    """Open a data set by folder, by name (`mldr`, `mldr-de`, `msmarco`, `nq`, `scifact` ...), or `name=FOLDER`.

    `name=FOLDER` reads a local copy of that hub data set, in the hub's own layout. `split` is only needed here for
    `train`: training judgements are not read unless they are asked for.

    Raises:
        InputError: neither a folder nor a known name, a file is missing or malformed, or the hub cannot be reached.
        OptionalDependencyError: a hub data set was asked for and `datasets` is not installed.
    """
    path = Path(data)
    if path.is_dir():
        return load_folder(path, split)
    name, _, folder = data.partition("=")
    if folder:
        return hub.load_local_copy(name, Path(folder))
    if data in hub.names():
        return hub.load_from_hub(data)
    raise InputError(
        f"{data!r} is neither a folder nor a known data set; known are {', '.join(hub.names())}; a folder needs "
        "corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (BEIR layout)"
    )
