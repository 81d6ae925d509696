"""`encode_corpus`: from a corpus to one shard of encoded documents, or to all of them, here or on a Ray cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.model import EncodeOptions, ReadOptions, check_options
from aveyb_retrieval.indexes.shards.encoder import EncodeJob, ShardEncoder
from aveyb_retrieval.indexes.shards.shard import check_shard
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

    from aveyb_retrieval.documents.corpus import Source
    from aveyb_retrieval.indexes.shards.ray_cluster import RayCluster
    from aveyb_retrieval.indexes.shards.shard import ShardManifest


class ShardOptions(ReadOptions, EncodeOptions, total=False):
    """Options of `encode_corpus`: those of reading and encoding, as in `build_index`, and these.

    Attributes:
        restart: Encode again what is there.
        batch_tokens: Tokens that the model encodes at once; None: its own number, 16,384.
        progress: Called as work goes on.
    """

    restart: bool
    batch_tokens: int | None
    progress: Progress


@dataclass(frozen=True)
class EncodeReport:
    """Shards that are complete.

    Attributes:
        place: path or URL.
        shards: their numbers, from 1.
        of: how many shards there are in all.
        documents, passages, tokens: what they hold.
        rejected: items of the corpus that are no documents and were left out of them.
        encoded: documents that this call encoded; the others were there.
        seconds: how long it took.
    """

    place: str
    shards: tuple[int, ...]
    of: int
    documents: int
    passages: int
    tokens: int
    rejected: int
    encoded: int
    seconds: float

    @classmethod
    def of_shards(cls, place: object, made: Sequence[ShardManifest], encoded: int, started: float) -> EncodeReport:
        """Sum up shards of one corpus; `started`: when, by the monotonic clock."""
        return cls(
            place=str(place),
            shards=tuple(manifest.shard for manifest in made),
            of=made[0].of,
            documents=sum(manifest.total("documents") for manifest in made),
            passages=sum(manifest.total("passages") for manifest in made),
            tokens=sum(manifest.total("tokens") for manifest in made),
            rejected=sum(manifest.rejected for manifest in made),
            encoded=encoded,
            seconds=time.monotonic() - started,
        )


def encode_corpus(
    corpus: Source | Sequence[str | Path],
    out: str | Path,
    *,
    shard: int | None = None,
    of: int = 1,
    ray: RayCluster | None = None,
    **options: Unpack[ShardOptions],
) -> EncodeReport:
    """Encode a corpus into shards at `out`, a folder or an fsspec URL. Killed at any moment, the same call continues.

    `build_index(None, path, vectors=out)` makes an index of complete shards. Every process reads the whole corpus and
    encodes its own share, so that processes and machines need to agree on nothing but `of`.

    Args:
        corpus: As in `build_index`; an iterable must give the same documents each time.
        out: Where the shards are written.
        shard: Encode only this one, from 1 to `of`. None: all of them, one after the other.
        of: How many shards the corpus is divided into.
        ray: Where Ray's actors make the shards, several at once; None: in this process. Several shards for each actor
            keep all of them busy to the end.
        **options: See `ShardOptions`, `ReadOptions` and `EncodeOptions`.

    Raises:
        ConfigError: an argument is out of range, or shards of other settings or of another corpus are at `out`.
        InputError: the corpus holds something that is no document, or an id twice.
        EngineError: the cluster does not answer, or its workers die again and again.
        OptionalDependencyError: `ray` is given and Ray is not installed.
    """
    options = check_options(options, ShardOptions, "encode_corpus")
    progress, started = options.pop("progress", silent), time.monotonic()
    job = EncodeJob(corpus, str(out), of, options)
    if ray is not None:
        from aveyb_retrieval.indexes.shards.ray_workers import encode_on_ray

        if shard is not None:
            raise ConfigError(f"shard={shard} with ray: its actors make all shards; leave shard out")
        made, encoded = encode_on_ray(job, ray, progress)
    else:
        if shard is not None:
            check_shard(shard, of)
        encoder = ShardEncoder(job, progress)
        numbers = range(1, of + 1) if shard is None else (shard,)
        made, encoded = [encoder.encode(number, log=number == numbers[0]) for number in numbers], encoder.encoded
    return EncodeReport.of_shards(out, made, encoded, started)
