"""What a collection of a server says about itself, and where it is."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.encoding import Encoding  # noqa: TC001  # msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 5
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


@dataclass(frozen=True)
class Address:
    """Where a collection of a server is: `scheme://user:password@host:port/folder/.../collection?parameters`.

    Attributes:
        url: Its parts.
        folders: The path without the collection: a database, or the path of a file.
        collection: The name of the collection.
        name: The URL without password and parameters, for messages.
    """

    url: SplitResult
    folders: tuple[str, ...]
    collection: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read a URL.

        Raises:
            ConfigError: its last part cannot be the name of a collection.
        """
        url = urlsplit(text)
        login, at, host = url.netloc.rpartition("@")
        name = f"{url.scheme}://{login.partition(':')[0]}{at}{host}{url.path}"
        *folders, collection = (unquote(part) for part in url.path.strip("/").split("/"))
        if not _NAME.fullmatch(collection):
            raise ConfigError(
                f"{name}: {collection!r} cannot be the name of a collection; it begins with a letter and has up to 31 "
                "of a-z, 0-9 and _"
            )
        return cls(url, tuple(folders), collection, name)
