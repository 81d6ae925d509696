"""EncodeJob: all that decides what the shards of a corpus hold, for any process that makes some of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.encode_options import load_as_asked, reading_of
from aveyb_retrieval.indexes.input.corpus import Source, read_corpus
from aveyb_retrieval.indexes.input.documents import Notice, OnError, Record, Rejected
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import check_shard
from aveyb_retrieval.indexes.shards.shard_encoder import ShardEncoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.input.documents import Item
    from aveyb_retrieval.indexes.shards.shard import ShardManifest
    from aveyb_retrieval.indexes.types import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodeJob:
    """What is encoded, how, and into how many shards; the arguments of `encode_corpus`.

    Attributes:
        options: Those of reading and encoding, by name, which are checked already.

    Raises:
        ConfigError: `of` is out of range.
    """

    corpus: Source | Sequence[str | Path]
    out: str
    of: int
    options: Mapping[str, Any]
    batch_tokens: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        """Check what can be checked without the model and the corpus."""
        if isinstance(self.of, bool) or not isinstance(self.of, int):
            raise ConfigError(f"of={self.of!r}: must be a whole number")
        check_shard(1, self.of)

    def start(self, progress: Progress) -> StartedJob:
        """Load the model, and be ready to make any of the shards.

        Raises:
            ModelError: there is no usable model.
            ConfigError: the model has no such option.
        """
        embedder, encoding = load_as_asked(self.options, batch_tokens=self.batch_tokens)
        on_error: OnError = self.options.get("on_error", "auto")
        return StartedJob(
            self,
            ShardEncoder(
                Place(self.out), encoding, embedder, on_error=on_error, restart=self.restart, progress=progress
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
        items = read_corpus(self._job.corpus, reading_of(self._job.options))
        return self.encoder.encode(_without_notices(items, log=log), shard, self._job.of)


def _without_notices(items: Iterator[Item], *, log: bool) -> Iterator[Record | Rejected]:
    """Pass documents on; log why files were left out, or which part of one holds no text."""
    for item in items:
        if not isinstance(item, Notice):
            yield item
        elif log:
            logger.warning("%s: %s", item.path, item.reason)
