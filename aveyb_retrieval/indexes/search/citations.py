"""Citations that were kept, checked later: against the file that they are of alone, or against an
index.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import files
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.records import Record
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.search.quotes import stands_in
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.store.manifest import is_stored
from aveyb_retrieval.indexes.store.place import read_manifest

if TYPE_CHECKING:
    from aveyb_retrieval.documents.records import FileOrigin

_MAX_CITATION_BYTES = 16 << 20  # bytes of a citation
_FIELDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "quote": (str,),
    "span": (list,),
    "sha256": (str, type(None)),
    "build": (str, type(None)),
    "version": (str,),
}


@dataclass(frozen=True)
class CitationCheck:
    """What became of a citation: whether the quoted words stand in the document, their characters
    now, what differs.
    """

    id: str
    holds: bool
    span: tuple[int, int] | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        place = "" if self.span is None else f" {self.span[0]}-{self.span[1]}"
        return "; ".join([f"{'found' if self.holds else 'absent':9} {self.id}{place}", *self.notes])


def read_citation(path: Path) -> dict[str, Any]:
    """Read what `Hit.citation` gave from a file of JSON, or raise InputError."""
    try:
        citation = json.loads(files.read_bounded(path, _MAX_CITATION_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); give what Hit.citation() returned") from None
    if not isinstance(citation, dict):
        raise InputError(f"{path}: not a citation; give what Hit.citation() returned")
    wrong = [name for name, kinds in _FIELDS.items() if not isinstance(citation.get(name), kinds)]
    if not wrong and (
        [type(place) for place in citation["span"]] != [int, int] or min(citation["span"]) < 0
    ):
        wrong = ["span"]
    if wrong or not citation["quote"].strip():
        raise InputError(
            f"{path}: no citation: its {(wrong or ['quote'])[0]!r} is missing or invalid; see"
            " Hit.citation()"
        )
    return citation


def check_citation(citation: dict[str, Any], place: str | Path) -> CitationCheck:
    """Look for the words of a citation in an index, or in the original alone."""
    name, notes = citation["id"], list[str]()
    origin: FileOrigin | None = None
    if is_stored(place) or Path(place).is_dir():
        manifest = read_manifest(place)
        if citation["build"] != manifest.build:
            notes.append(
                f"cited from another index (build {citation['build']}; this is {manifest.build})"
            )
        with Retriever.load(place) as retriever:
            documents = retriever.get([name], missing_ok=True)
        if not documents:
            return CitationCheck(name, False, None, (*notes, "no document has this id"))
        text, origin = documents[0].text, documents[0].origin
    else:
        if PurePath(name).name != Path(place).name:
            notes.append(f"the file has another name than {name}")
        record = next((item for item in read_corpus(place) if isinstance(item, Record)), None)
        if record is None:
            raise InputError(f"{place}: holds no text that can be read")
        text, origin = record.text, record.origin
    if citation["sha256"] is not None and (origin is None or origin.sha256 != citation["sha256"]):
        notes.append("the original has changed since")
    span = stands_in(text, citation["quote"], citation["span"])
    if span is None:
        notes.append("the quoted words are not in it")
    return CitationCheck(name, span is not None, span, tuple(notes))
