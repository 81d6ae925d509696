"""`Encoding`: everything that says how the vectors and words of a collection were made, in one
place.

An index, an interrupted change and a published collection all keep one; whether two of them go
together is asked of `differences` and nowhere else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aveyb_retrieval.encoder.network.token_codec import TokenCodec
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.types import EmbedderLike, Kind, model_description, token_width

if TYPE_CHECKING:
    from collections.abc import Iterable

GRANULARITIES: dict[str, tuple[Kind, ...]] = {
    "document": ("document",),
    "passage": ("passage",),
    "both": ("document", "passage"),
}
STORAGE_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
ENGLISH = "english"
AUTO = "auto"  # the rules of each document's own language
WORD_RULES = ("language", "keep_accents", "synonyms")
# how, and how much: what is searched does not depend on it
KEPT = ("storage_dtype", "token_vectors", "token_dim")


@dataclass(frozen=True)
class Encoding:
    """How vectors and words were made."""

    # `model_description`; None: ready-made vectors of a model nobody named
    model: dict[str, Any] | None
    # name or absolute folder to load it by, never compared; None: embedded, or given loaded
    model_source: str | None
    dim: int  # d, the width of the vectors
    granularity: Literal["document", "passage", "both"]  # the vectors that are kept
    storage_dtype: Literal["float32", "float16"] = "float32"  # how their numbers are kept
    max_tokens: int | None = None  # documents are cut after so many; None: never
    passage_tokens: int | None = (
        None  # this to `titled`: the model's `PassageSize`; None: it cuts in its own way
    )
    passage_overlap: int = 0
    late: bool | None = None
    titled: bool = False
    token_vectors: str | None = None  # how the vectors of tokens are kept; None: they are not
    token_dim: int | None = None
    language: str = AUTO  # the rules by which words are found
    keep_accents: bool = False  # whether words with other accents are other words
    synonyms: str = ""  # synonyms and protected words, as `indexes.store.words` reads them
    model_beside: str | None = (
        None  # the model's folder from the index's own: both may be moved; None: no folder
    )

    @classmethod
    def of_model(
        cls,
        embedder: EmbedderLike,
        *,
        source: str | None,
        granularity: str,
        storage_dtype: str,
        max_tokens: int | None = None,
        token_vectors: str | None = None,
        **words: Any,
    ) -> Encoding:
        """Describe what a loaded model makes; `source` is what it was loaded by, `words` how words
        are found.
        """
        size = getattr(embedder, "passage_size", None)
        return cls(
            model=model_description(embedder),
            model_source=source,
            dim=embedder.dim,
            granularity=granularity,  # type: ignore[arg-type]  # checked by whoever takes it from a user
            storage_dtype=storage_dtype,  # type: ignore[arg-type]
            max_tokens=(
                max_tokens if max_tokens is not None else getattr(embedder, "max_tokens", None)
            ),
            passage_tokens=size.tokens if size else None,
            passage_overlap=size.overlap if size else 0,
            late=size.late if size else None,
            titled=bool(size and size.titled),
            token_vectors=token_vectors,
            token_dim=token_width(embedder) if token_vectors is not None else None,
            **words,
        )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of vectors that are kept."""
        return GRANULARITIES[self.granularity]

    def as_seen_from(self, root: str | Path) -> Encoding:
        """Return the same, which also says where the model is as seen from the index at `root`."""
        if self.model_source is None or "://" in str(root) or not os.path.isabs(self.model_source):  # noqa: PTH117
            return self
        try:
            way = os.path.relpath(os.path.realpath(self.model_source), os.path.realpath(root))
        except ValueError:  # on another drive
            return self
        return dataclasses.replace(self, model_beside=Path(way).as_posix())

    def model_places(self, root: str | Path | None = None) -> tuple[str, ...]:
        """Where the model may be, best first, for an index at `root`; empty: the embedded one, or
        given loaded.
        """
        model_places = (
            ()
            if root is None or self.model_beside is None
            else (os.path.abspath(Path(root, self.model_beside)),)  # noqa: PTH100
        )
        source = () if self.model_source is None else (self.model_source,)
        return tuple(dict.fromkeys((*source, *model_places)))

    @property
    def fingerprint(self) -> str | None:
        """What identifies the model; None where nobody named it."""
        return None if self.model is None else str(self.model["fingerprint"])

    @property
    def passage_size(self) -> PassageSize | None:
        """How long passages are; None: the model cuts them in its own way."""
        if self.passage_tokens is None:
            return None
        return PassageSize(self.passage_tokens, self.passage_overlap, self.late, self.titled)

    @property
    def token_codec(self) -> TokenCodec | None:
        """How the vectors of tokens are kept; None: they are not."""
        if self.token_vectors is None or self.token_dim is None:
            return None
        return TokenCodec(self.token_dim, self.token_vectors)

    @property
    def tokens_of(self) -> Kind:
        """What tokens are kept with: passages, or documents where there are none."""
        return "passage" if "passage" in self.kinds else "document"

    def comparable(self) -> dict[str, Any]:
        """All that must be equal for vectors and words to go together, by name, as messages show
        it.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["model_source"], values["model_beside"]
        if self.model is not None:
            values["model"] = f"{self.model['name']} ({self.model['fingerprint'][:16]})"
        return values

    def differences(
        self, other: Encoding, *, but: Iterable[str] = ()
    ) -> dict[str, tuple[Any, Any]]:
        """Return what another one says otherwise, by name: (ours, theirs).

        Models are compared by fingerprints.
        """
        ours, theirs = self.comparable(), other.comparable()
        if self.fingerprint == other.fingerprint:
            theirs["model"] = ours["model"]
        return {
            name: (value, theirs[name])
            for name, value in ours.items()
            if name not in but and theirs[name] != value
        }

    def check_takes(self, other: Encoding, here: object, source: object) -> None:
        """Check that documents encoded as `other` can be put among these; how numbers are stored
        may differ.
        """
        if not set(self.kinds) <= set(other.kinds):
            raise ConfigError(
                f"{source} has granularity {other.granularity!r}, {here} has"
                f" {self.granularity!r}; choose a granularity of both, or encode the documents"
                " again"
            )
        but = {"granularity", "storage_dtype", *WORD_RULES, "token_vectors", "token_dim"}
        if self.granularity == "document":
            but |= {"passage_tokens", "passage_overlap", "late", "titled"}
        for name, (ours, theirs) in self.differences(other, but=but).items():
            raise ConfigError(
                f"{source}: {name} is {theirs!r}, but {here} has {ours!r}; encode the documents"
                " with the same settings"
            )
        if self.token_vectors is not None and self.token_vectors != other.token_vectors:
            raise ConfigError(
                f"{source}: no token vectors ({self.token_vectors}), which {here} has of every"
                " document; encode the documents with its model"
            )

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides the vectors and words."""
        values = {**self.comparable(), "model": self.fingerprint}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
