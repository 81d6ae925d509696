"""`encode_corpus`: from a corpus to one shard of encoded documents, or to all of them."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.index.exchange.place import Place
from aveyb_retrieval.index.exchange.report import EncodeReport
from aveyb_retrieval.index.exchange.shard import EncodeSettings, check_shard
from aveyb_retrieval.index.exchange.shard_encoder import ShardEncoder
from aveyb_retrieval.index.input.corpus import Source, read_corpus
from aveyb_retrieval.index.input.documents import MAX_LINE, FieldNames, Notice, Record, Rejected
from aveyb_retrieval.index.model import Model, cut_as_asked, load_model
from aveyb_retrieval.index.storage.manifest import GRANULARITIES
from aveyb_retrieval.index.storage.shards import STORAGE_DTYPES
from aveyb_retrieval.index.types import Progress, model_description, silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aveyb_retrieval.index.exchange.shard import ShardManifest
    from aveyb_retrieval.index.input.rows import Item


logger = logging.getLogger(__name__)


def encode_corpus(
    corpus: Source | Sequence[str | Path],
    out: str | Path,
    *,
    shard: int | None = None,
    of: int = 1,
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
        granularity: "both", or only "document" or "passage" vectors.
        storage_dtype: "float32", or "float16" for half the size and an error below 1e-3.
        restart: Encode again what is there.
        model, id_field, title_field, text_field, on_error, max_line, encoding, types, max_tokens, passage_tokens,
        passage_overlap, late, device, precision, progress: As in `build_index`.

    Raises:
        ConfigError: an argument is out of range, or shards of other settings or of another corpus are at `out`.
        InputError: the corpus holds something that is no document, or an id twice.
    """
    if isinstance(of, bool) or not isinstance(of, int):
        raise ConfigError(f"of={of!r}: must be a whole number")
    check_shard(1 if shard is None else shard, of)
    for name, value, known in (
        ("granularity", granularity, tuple(GRANULARITIES)),
        ("storage_dtype", storage_dtype, tuple(STORAGE_DTYPES)),
        ("on_error", on_error, ("stop", "skip")),
    ):
        if value not in known:
            raise ConfigError(f"{name}={value!r}: must be one of {', '.join(known)}")
    started = time.monotonic()
    embedder = load_model(model, device=device, precision=precision, max_tokens=max_tokens)
    embedder = cut_as_asked(embedder, passage_tokens, passage_overlap, late)
    size = getattr(embedder, "passage_size", None)
    settings = EncodeSettings(
        model=model_description(embedder),
        granularity=granularity,
        dim=embedder.dim,
        storage_dtype=storage_dtype,
        max_tokens=max_tokens if max_tokens is not None else getattr(embedder, "max_tokens", None),
        passage_tokens=size.tokens if size else None,
        passage_overlap=size.overlap if size else 0,
        late=size.late if size else None,
    )
    place = Place(out)
    source = str(model) if isinstance(model, (str, Path)) else None
    encoder = ShardEncoder(place, settings, source, embedder, on_error=on_error, restart=restart, progress=progress)
    numbers = range(1, of + 1) if shard is None else (shard,)
    made: list[ShardManifest] = []
    for number in numbers:
        items = read_corpus(corpus, FieldNames(id_field, title_field, text_field), max_line, encoding, types)
        made.append(encoder.encode(_without_notices(items, log=number == numbers[0]), number, of))
    return EncodeReport.of_shards(place, made, encoder.encoded, time.monotonic() - started)


def _without_notices(items: Iterator[Item], *, log: bool) -> Iterator[Record | Rejected]:
    """Pass documents on; log why files were left out, or which part of one holds no text."""
    for item in items:
        if not isinstance(item, Notice):
            yield item
        elif log:
            logger.warning("%s: %s", item.path, item.reason)
