"""`encode_corpus`: from a corpus to one shard of encoded documents, or to all of them, here or on a Ray cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.shards.job import EncodeJob
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.report import EncodeReport
from aveyb_retrieval.indexes.shards.shard import check_shard
from aveyb_retrieval.indexes.input.documents import MAX_LINE, FieldNames
from aveyb_retrieval.indexes.input.reading import Reading
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.shards.ray_cluster import RayCluster
    from aveyb_retrieval.indexes.input.corpus import Source
    from aveyb_retrieval.indexes.model import Model


def encode_corpus(
    corpus: Source | Sequence[str | Path],
    out: str | Path,
    *,
    shard: int | None = None,
    of: int = 1,
    ray: RayCluster | None = None,
    model: Model = None,
    granularity: str = "both",
    storage_dtype: str = "float32",
    id_field: str | None = None,
    title_field: str = "title",
    text_field: str = "text",
    on_error: Literal["stop", "skip"] = "stop",
    max_line: int = MAX_LINE,
    encoding: str | None = None,
    types: Mapping[str, str] | None = None,
    restart: bool = False,
    max_tokens: int | None = None,
    passage_tokens: int | None = None,
    passage_overlap: int = 0,
    late: bool | None = None,
    device: str = "cpu",
    precision: str = "float32",
    batch_tokens: int | None = None,
    progress: Progress = silent,
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
        granularity: "both", or only "document" or "passage" vectors.
        storage_dtype: "float32", or "float16" for half the size and an error below 1e-3.
        restart: Encode again what is there.
        batch_tokens: Tokens that the model encodes at once; None: its own number, 16,384.
        model, id_field, title_field, text_field, on_error, max_line, encoding, types, max_tokens, passage_tokens,
        passage_overlap, late, device, precision, progress: As in `build_index`.

    Raises:
        ConfigError: an argument is out of range, or shards of other settings or of another corpus are at `out`.
        InputError: the corpus holds something that is no document, or an id twice.
        EngineError: the cluster does not answer, or its workers die again and again.
        OptionalDependencyError: `ray` is given and Ray is not installed.
    """
    job = EncodeJob(
        corpus=corpus,
        reading=Reading(FieldNames(id_field, title_field, text_field), max_line, encoding, dict(types or {})),
        out=str(out),
        of=of,
        model=model,
        device=device,
        precision=precision,
        batch_tokens=batch_tokens,
        max_tokens=max_tokens,
        passage_tokens=passage_tokens,
        passage_overlap=passage_overlap,
        late=late,
        granularity=granularity,
        storage_dtype=storage_dtype,
        on_error=on_error,
        restart=restart,
    )
    started = time.monotonic()
    if ray is not None:
        from aveyb_retrieval.indexes.shards.ray_workers import encode_on_ray

        if shard is not None:
            raise ConfigError(f"shard={shard} with ray: its actors make all shards; leave shard out")
        made, encoded = encode_on_ray(job, ray, progress)
    else:
        if shard is not None:
            check_shard(shard, of)
        here = job.start(progress)
        numbers = range(1, of + 1) if shard is None else (shard,)
        made, encoded = [here.encode(number, log=number == numbers[0]) for number in numbers], here.encoder.encoded
    return EncodeReport.of_shards(Place(out), made, encoded, time.monotonic() - started)
