"""Where the vectors of new documents come from: a model, or a file of vectors made elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.changes.ingest import GrowingEmbedder, Step
from aveyb_retrieval.indexes.input.precomputed import PrecomputedVectors
from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
from aveyb_retrieval.indexes.shards.parts import encoded_of
from aveyb_retrieval.indexes.shards.place import is_url
from aveyb_retrieval.indexes.types import EmbedderLike, Encoded, check_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.encode_options import Vectors
    from aveyb_retrieval.indexes.encoding import Encoding


class VectorSource(ABC):
    """Gives the vectors of the documents of a change, in order.

    Attributes:
        growing: The model, where it can continue a document that grew.
    """

    growing: GrowingEmbedder | None = None

    @abstractmethod
    def encode(self, steps: Iterator[Step]) -> Iterator[Encoded]:
        """Return one result for each step, in order.

        It may read ahead, but only in the calling thread: pulling a step may commit those before it.
        """

    @abstractmethod
    def check_fits(self, encoding: Encoding, where: object) -> None:
        """Raise an error of ours where these vectors do not fit the index at `where`."""

    def check_all_used(self, documents: int) -> None:  # noqa: B027  # a model encodes as many as there are
        """Raise InputError where the source has vectors for another number of documents than were read."""

    def describe(self) -> str | None:
        """Identify ready-made vectors, so that an interrupted change never continues with others; None for a model."""
        return None


class ModelSource(VectorSource):
    """Encodes documents with a model."""

    def __init__(self, embedder: EmbedderLike) -> None:
        self.embedder = embedder
        self.growing = embedder if isinstance(embedder, GrowingEmbedder) else None

    def encode(self, steps: Iterator[Step]) -> Iterator[Encoded]:
        """Encode titles and texts."""
        return self.embedder.encode_documents((step.record.prefix, step.record.text) for step in steps)

    def check_fits(self, encoding: Encoding, where: object) -> None:
        """Raise IndexFormatError where another model made the index."""
        if encoding.model is None:
            raise ConfigError(f"{where}: made from ready-made vectors; add documents with vectors of the same model")
        check_fingerprint(encoding.model, encoding.dim, self.embedder, where)


class PrecomputedSource(VectorSource):
    """Takes the vectors that documents of shards bring along, or those of a file at their position in the corpus."""

    def __init__(self, vectors: PrecomputedVectors | EncodedShards) -> None:
        self.vectors = vectors

    def encode(self, steps: Iterator[Step]) -> Iterator[Encoded]:
        """Take the row of each document."""
        if isinstance(self.vectors, EncodedShards):
            return (encoded_of(step.record) for step in steps)
        return (self.vectors.document(step.position - 1, step.record.id) for step in steps)

    def check_fits(self, encoding: Encoding, where: object) -> None:
        """Raise ConfigError where the index has another dimension, other passages, another model, or tokens."""
        if isinstance(self.vectors, EncodedShards):
            encoding.check_takes(self.vectors.encoding, where, self.vectors.name)
            return
        if encoding.token_vectors is not None:
            raise ConfigError(
                f"{self.vectors.name}: without the token vectors that {where} keeps of every document; add documents "
                "by its model instead"
            )
        if encoding.granularity != "document" or self.vectors.dim != encoding.dim:
            raise ConfigError(
                f"{self.vectors.name}: one vector of dimension {self.vectors.dim} per document, but {where} has "
                f"granularity {encoding.granularity!r} and dimension {encoding.dim}"
            )

    def check_all_used(self, documents: int) -> None:
        """Raise InputError where rows and documents are not equally many."""
        if documents != len(self.vectors):
            raise InputError(
                f"{self.vectors.name}: {len(self.vectors)} vectors for {documents} documents of the corpus; "
                "one row each is needed"
            )

    def describe(self) -> str | None:
        """Return the name with a hash of all rows."""
        return self.vectors.describe()


def open_vectors(vectors: Vectors | None, corpus: object) -> PrecomputedVectors | EncodedShards | None:
    """Open ready-made vectors: an array, a file of them, or a folder or URL of shards; None where none are given.

    Raises:
        InputError: they are not usable.
        ConfigError: a corpus is given beside shards, which hold the documents themselves, or neither is given.
    """
    if vectors is None:
        if corpus is None:
            raise ConfigError("no corpus and no vectors: give at least one of them")
        return None
    if not (is_url(vectors) or (isinstance(vectors, (str, Path)) and Path(vectors).is_dir())):
        return PrecomputedVectors.open(vectors)
    assert not isinstance(vectors, np.ndarray)  # neither of the two
    if corpus is not None:
        raise ConfigError(f"{vectors}: shards hold the documents with their vectors; leave the corpus out")
    return EncodedShards(vectors)
