"""The settings that later changes of an index start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from aveyb_retrieval.encoder.passages import PassageSize
from aveyb_retrieval.indexes.store.language import ENGLISH
from aveyb_retrieval.indexes.store.tokens import token_codec

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.token_codec import TokenCodec
    from aveyb_retrieval.indexes.store.manifest import Manifest


@dataclass(frozen=True)
class Settings:
    """The settings that every later change of an index starts from; only tuning changes one, `recall`.

    `index` is a FAISS factory string or "auto", `recall` the share of exact results its search settings are tuned for
    (None: not tuned), `model` the description of the model (None: ready-made vectors of a model nobody named),
    `model_source` and `max_tokens` what to load it with again, `passage_tokens`, `passage_overlap`, `late` and `titled`
    how it cuts and encodes passages (None: in its own way, as in every index made before there was a choice; an index
    that says nothing about `titled` was made before titles were read again), `language` the rules by which words are
    found, `token_vectors` how the vectors of tokens, of width `token_dim`, are kept (None: they are not).
    """

    KEPT: ClassVar = (
        "index", "recall", "model_source", "max_tokens", "passage_tokens", "passage_overlap", "late", "titled",
        "language", "token_vectors", "token_dim",
    )  # fmt: skip

    granularity: str
    dim: int
    storage_dtype: str
    index: str
    recall: float | None
    index_fields: dict[str, str]
    model: dict[str, Any] | None
    model_source: str | None
    max_tokens: int | None
    passage_tokens: int | None = None
    passage_overlap: int = 0
    late: bool | None = None
    titled: bool = False
    language: str = ENGLISH
    token_vectors: str | None = None
    token_dim: int | None = None

    @property
    def token_codec(self) -> TokenCodec | None:
        """How the vectors of tokens are kept; None: they are not."""
        return token_codec(vars(self))

    @property
    def passage_size(self) -> PassageSize | None:
        """How long passages are; None: the model cuts them in its own way."""
        if self.passage_tokens is None:
            return None
        return PassageSize(self.passage_tokens, self.passage_overlap, self.late, self.titled)

    @classmethod
    def of(cls, manifest: Manifest) -> Settings:
        """The settings of an existing index."""
        return cls(
            granularity=manifest.granularity,
            dim=manifest.dim,
            storage_dtype=manifest.storage_dtype,
            index_fields=manifest.index_fields,
            model=manifest.model,
            **manifest.settings,
        )
