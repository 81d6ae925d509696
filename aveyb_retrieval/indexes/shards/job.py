"""EncodeJob: all that decides what the shards of a corpus hold, for any process that makes some of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import EncodeSettings, check_shard
from aveyb_retrieval.indexes.shards.shard_encoder import OnError, ShardEncoder
from aveyb_retrieval.indexes.input.corpus import Source, read_corpus
from aveyb_retrieval.indexes.input.documents import Notice, Record, Rejected
from aveyb_retrieval.indexes.model import Model, cut_as_asked, load_model
from aveyb_retrieval.indexes.store.manifest import GRANULARITIES
from aveyb_retrieval.indexes.store.vectors import STORAGE_DTYPES
from aveyb_retrieval.indexes.types import Progress, model_description

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.shards.shard import ShardManifest
    from aveyb_retrieval.indexes.input.reading import Reading
    from aveyb_retrieval.indexes.input.rows import Item

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodeJob:
    """What is encoded, how, and into how many shards; the arguments of `encode_corpus`.

    Raises:
        ConfigError: one is out of range.
    """

    corpus: Source | Sequence[str | Path]
    reading: Reading
    out: str
    of: int
    model: Model
    device: str
    precision: str
    batch_tokens: int | None
    max_tokens: int | None
    passage_tokens: int | None
    passage_overlap: int
    late: bool | None
    granularity: str
    storage_dtype: str
    on_error: OnError
    restart: bool

    def __post_init__(self) -> None:
        """Check what can be checked without the model and the corpus."""
        if isinstance(self.of, bool) or not isinstance(self.of, int):
            raise ConfigError(f"of={self.of!r}: must be a whole number")
        check_shard(1, self.of)
        for name, value, known in (
            ("granularity", self.granularity, tuple(GRANULARITIES)),
            ("storage_dtype", self.storage_dtype, tuple(STORAGE_DTYPES)),
            ("on_error", self.on_error, ("stop", "skip")),
        ):
            if value not in known:
                raise ConfigError(f"{name}={value!r}: must be one of {', '.join(known)}")

    def start(self, progress: Progress) -> StartedJob:
        """Load the model, and be ready to make any of the shards.

        Raises:
            ModelError: there is no usable model.
            ConfigError: the model has no such option.
        """
        embedder = load_model(
            self.model,
            device=self.device,
            precision=self.precision,
            max_tokens=self.max_tokens,
            batch_tokens=self.batch_tokens,
        )
        embedder = cut_as_asked(embedder, self.passage_tokens, self.passage_overlap, self.late)
        size = getattr(embedder, "passage_size", None)
        settings = EncodeSettings(
            model=model_description(embedder),
            granularity=self.granularity,
            dim=embedder.dim,
            storage_dtype=self.storage_dtype,
            max_tokens=self.max_tokens if self.max_tokens is not None else getattr(embedder, "max_tokens", None),
            passage_tokens=size.tokens if size else None,
            passage_overlap=size.overlap if size else 0,
            late=size.late if size else None,
            titled=bool(size and size.titled),
        )
        source = str(self.model) if isinstance(self.model, (str, Path)) else None
        return StartedJob(
            self,
            ShardEncoder(
                Place(self.out),
                settings,
                source,
                embedder,
                on_error=self.on_error,
                restart=self.restart,
                progress=progress,
            ),
        )


class StartedJob:
    """A job whose model is loaded.

    Attributes:
        encoder: what makes the shards.
    """

    def __init__(self, job: EncodeJob, encoder: ShardEncoder) -> None:
        self._job = job
        self.encoder = encoder

    def encode(self, shard: int, *, log: bool) -> ShardManifest:
        """Make one shard, or find it complete; `log` why files of the corpus are left out.

        Raises:
            ConfigError: what is there was made with other settings, or of another corpus.
            InputError: the corpus holds something that is no document, or an id twice.
            ModelError: the model's answer cannot be used.
        """
        reading = self._job.reading
        items = read_corpus(self._job.corpus, reading.names, reading.max_line, reading.encoding, reading.types)
        return self.encoder.encode(_without_notices(items, log=log), shard, self._job.of)


def _without_notices(items: Iterator[Item], *, log: bool) -> Iterator[Record | Rejected]:
    """Pass documents on; log why files were left out, or which part of one holds no text."""
    for item in items:
        if not isinstance(item, Notice):
            yield item
        elif log:
            logger.warning("%s: %s", item.path, item.reason)
