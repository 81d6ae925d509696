"""What a collection of an engine says about itself, and what is put into it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.encoding import Encoding  # noqa: TC001  # msgspec reads it
from aveyb_retrieval.indexes.input.documents import FileOrigin
from aveyb_retrieval.indexes.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.types import EncodedRow

FORMAT = 4
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


@dataclass(frozen=True)
class CollectionSettings:
    """What decides the content of a collection.

    Attributes:
        encoding: How its vectors and words were made.
        publication: Identifies the documents as they were published.
    """

    encoding: Encoding
    publication: str
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> CollectionSettings:
        """Read the settings of the collection `where`.

        Raises:
            IndexFormatError: they are of another version of this package, or damaged.
        """
        if values.get("format") != FORMAT:
            raise IndexFormatError(
                f"{where}: collection format {values.get('format')!r}, this version reads {FORMAT}; publish it again"
            )
        try:
            return msgspec.convert(dict(values), cls, strict=True)
        except msgspec.ValidationError as error:
            raise IndexFormatError(f"{where}: damaged settings ({error}); publish it again") from error

    def check_same(self, other: CollectionSettings, where: str) -> None:
        """Check that documents with the settings `other` can be put into the collection `where`, which has these.

        Raises:
            ConfigError: something that decides vectors or words differs.
        """
        # token vectors are not published, and how numbers are stored is the engine's own business
        but = ("storage_dtype", "token_vectors", "token_dim")
        for name, (ours, theirs) in self.encoding.differences(other.encoding, but=but).items():
            raise ConfigError(
                f"{where}: {name} of the collection is {ours!r}, of the documents {theirs!r}; publish them as a whole, "
                "without --update"
            )


class CollectionWriter(Protocol):
    """One server that documents are written to.

    Publishing goes `begin`, `add` ..., `finish`, `switch`: readers see nothing of it before `switch`. `upsert` and
    `delete` change the collection that readers see, each call as a whole.
    """

    name: str

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin or continue to publish; returns how many documents are there already.

        Raises:
            IndexLockedError: another process is publishing under this name.
        """
        ...

    def add(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add new documents to what is published; they are safe when this returns."""
        ...

    def finish(self) -> None:
        """Build the indexes of what was added."""
        ...

    def switch(self) -> None:
        """Show readers what was published."""
        ...

    def settings(self) -> CollectionSettings:
        """Return the settings of the collection that readers see."""
        ...

    def upsert(self, rows: Sequence[tuple[Record, EncodedRow]]) -> None:
        """Add documents, or replace those of the same ids; they are safe when this returns."""
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents by id; those that are not there are fine. Returns how many there were."""
        ...

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that no document has."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


def check_name(name: str, where: str) -> str:
    """Return the name of a collection.

    Raises:
        ConfigError: it is not one.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: {name!r} cannot be the name of a collection; it begins with a letter and has up to 31 of a-z, "
            "0-9 and _"
        )
    return name


def pages_alone(pages: str | None) -> FileOrigin | None:
    """The file that a document was read from, of which a collection keeps no more than the pages."""
    return None if pages is None else FileOrigin("", "", Pages.from_json(json.loads(pages)))
