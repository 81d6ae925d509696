"""The options that builds, shards and changes share, by name: how a corpus is read, and how documents are encoded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.encoder.network.token_codec import STORAGES
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.encoding import ENGLISH, GRANULARITIES, STORAGE_DTYPES, Encoding
from aveyb_retrieval.indexes.input.documents import MAX_LINE, ON_ERROR, FieldNames, OnError
from aveyb_retrieval.indexes.input.readers.base import FILE_SECONDS
from aveyb_retrieval.indexes.input.reading import Reading
from aveyb_retrieval.indexes.model import cut_as_asked, load_model, pooling
from aveyb_retrieval.indexes.store.words import language
from aveyb_retrieval.wording import no_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aveyb_retrieval.indexes.model import Model
    from aveyb_retrieval.indexes.types import EmbedderLike, Progress

Given = TypeVar("Given", bound="Mapping[str, Any]")
Vectors = str | Path | npt.NDArray[np.floating]
"""Ready-made vectors: a `.npy` or Parquet file, an array, or a folder or URL of shards."""


class ReadOptions(TypedDict, total=False):
    """How a corpus is read.

    Attributes:
        id_field: Field that holds the id; None is `_id`, else `id`, else an id is made.
        title_field: Field that holds the title. Default "title".
        text_field: Field that holds the text. Default "text".
        on_error: What to do with an item that is no document: "stop"; "skip" lists it in `Report.rejected_file` and
            goes on; "auto" (default) does so with files that were found in folders, and stops at all else.
        max_line: A line of the corpus, or the text of a file, has at most this many bytes; a longer one is no document.
        encoding: Of text files, such as "cp1252"; None is UTF-8, or UTF-16 where a byte order mark says so.
        types: Types of columns of CSV and TSV files: "int", "float", "bool" or "string"; the others are inferred.
        follow_links: Also read links that are found in folders; without it they are left out, with a notice.
        file_seconds: Seconds of processor time that reading one file may take.
    """

    id_field: str | None
    title_field: str
    text_field: str
    on_error: OnError
    max_line: int
    encoding: str | None
    types: Mapping[str, str] | None
    follow_links: bool
    file_seconds: int


class EncodeOptions(TypedDict, total=False):
    """How documents are encoded, where an index or shards are made; later changes take it from the index.

    Attributes:
        model: Model folder or name, or a loaded `Embedder`; None is the embedded default.
        device: Where the model runs. Default "cpu".
        precision: What it computes in: "auto" (default: "int8" by ONNX Runtime on a CPU where the model has that form,
            else "float32"), "float32", "bfloat16", "float16" or "float8"; see `Embedder.load`. Documents and queries
            may differ in it.
        granularity: "document", "passage" or "both" (default): which vectors are searched.
        storage_dtype: How vectors are kept on disk: "float32" (default), or "float16" for half the size and an error
            below 1e-3.
        max_tokens: Cut documents after this many tokens (counted in the report). None reads them whole.
        passage_tokens: Passages are runs of whole sentences of at most this many tokens, 16 to 8,192. None is what the
            model was loaded with, 256 by default.
        passage_overlap: Passages begin with the last sentences of the one before, up to this many tokens, 0 to half of
            `passage_tokens`. None is what the model was loaded with, 0 by default.
        late: Encode passages within their document (True) or one by one (False). None is what the model was loaded
            with: within it for Avey-B models, which know no other way, one by one for sentence-transformers models.
        funnel: Pool neighbouring tokens of documents in pairs behind the model's first N layers, to encode them in less
            time (see `Embedder.with_funnel`). None is what the model does.
        language: How words are found: "english" (default), another language of
            `aveyb_retrieval.indexes.store.words.LANGUAGES`, or "none" (words as they are written). Chinese, Japanese
            and Korean are found in all of them.
    """

    model: Model
    device: str
    precision: str
    granularity: str
    storage_dtype: str
    max_tokens: int | None
    passage_tokens: int | None
    passage_overlap: int | None
    late: bool | None
    funnel: int | None
    language: str


class BuildOptions(ReadOptions, EncodeOptions, total=False):
    """Options of `build_index`: those of reading and encoding, and these.

    Attributes:
        vectors: Ready-made vectors, one row per document: `.npy`, Parquet with a column `vector`, or an array; or the
            folder or URL of shards that `encode_corpus` made, which hold the documents, too: `corpus` is None then.
        index: "auto" (by size; default) or a FAISS factory string such as "HNSW32" or "IVF4096,Flat".
        recall: Tune the search settings until this share of exact results is found, and keep the measured curve.
        token_vectors: Also keep a vector of every token, as "int8" (128 bytes) or "1bit" (16), so that
            `rerank="maxsim"` encodes nothing again; None does not.
        allow_empty: Make the index also where the corpus holds no documents (`[]`), to add some later.
        overwrite: Replace an index that is already there; its readers keep what they have open.
        restart: Throw away the work of an interrupted change.
        progress: Called as the work goes on.
    """

    vectors: Vectors | None
    index: str
    recall: float | None
    token_vectors: str | None
    allow_empty: bool
    overwrite: bool
    restart: bool
    progress: Progress


class InsertOptions(ReadOptions, total=False):
    """Options of `add_documents` and `upsert_documents`: those of reading, and these, as in `build_index`."""

    vectors: Vectors | None
    model: Model
    device: str
    precision: str
    restart: bool
    progress: Progress


_CHOICES: dict[str, tuple[str, ...]] = {
    "granularity": tuple(GRANULARITIES),
    "storage_dtype": tuple(STORAGE_DTYPES),
    "on_error": ON_ERROR,
    "token_vectors": tuple(STORAGES),
}


def check_options(options: Given, known: type, function: str) -> Given:
    """Check the names of options, and the values of those that have only some; return those that are given, not None.

    Raises:
        ConfigError: an option is unknown, or has a value that it cannot have.
    """
    names = sorted(known.__annotations__)
    given = {name: value for name, value in options.items() if value is not None or name not in names}
    for name, value in given.items():
        if name not in names:
            raise ConfigError(no_option(function, name, names))
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ConfigError(f"{name}={value!r}: must be one of {', '.join(map(str, _CHOICES[name]))}")
    check_recall(given.get("recall"))
    return cast("Given", given)


def check_recall(recall: float | None) -> None:
    """Raise ConfigError where a share of nearest vectors is none."""
    if recall is not None and not 0 < recall <= 1:
        raise ConfigError(f"recall={recall}: must be above 0 and at most 1")


def reading_of(options: Mapping[str, Any]) -> Reading:
    """How the options of reading say that a corpus is read."""
    names = FieldNames(options.get("id_field"), options.get("title_field", "title"), options.get("text_field", "text"))
    return Reading(
        names,
        options.get("max_line", MAX_LINE),
        options.get("encoding"),
        dict(options.get("types") or {}),
        options.get("follow_links", False),
        options.get("file_seconds", FILE_SECONDS),
    )


def load_as_asked(options: Mapping[str, Any], *, batch_tokens: int | None = None) -> tuple[EmbedderLike, Encoding]:
    """Load the model that the options of encoding ask for, and say what it makes.

    Raises:
        ModelError: there is no usable model.
        ConfigError: the model has no such option, or it is out of range.
    """
    model = options.get("model")
    embedder = load_model(
        model,
        device=options.get("device", "cpu"),
        precision=options.get("precision", "auto"),
        max_tokens=options.get("max_tokens"),
        batch_tokens=batch_tokens,
    )
    embedder = cut_as_asked(
        embedder, options.get("passage_tokens"), options.get("passage_overlap"), options.get("late")
    )
    embedder = pooling(embedder, options.get("funnel"))
    encoding = Encoding.of_model(
        embedder,
        source=str(model) if isinstance(model, (str, Path)) else None,
        granularity=options.get("granularity", "both"),
        storage_dtype=options.get("storage_dtype", "float32"),
        max_tokens=options.get("max_tokens"),
        funnel=options.get("funnel"),
        token_vectors=options.get("token_vectors"),
        language=language(options.get("language", ENGLISH)).name,
    )
    return embedder, encoding
