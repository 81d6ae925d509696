"""The model of an index: how it is asked for, opened, and compared with the one that made the
vectors.
"""

from __future__ import annotations

import copy
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.documents.exclusion import check_patterns
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import ON_ERROR, FieldNames, OnError
from aveyb_retrieval.encoder.network.token_codec import STORAGES
from aveyb_retrieval.encoder.text.passages import DEFAULT_SIZE, PassageSize
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, ModelError, no_option
from aveyb_retrieval.indexes.encoding import (
    AUTO,
    GRANULARITIES,
    STORAGE_DTYPES,
    WORD_RULES,
    Encoding,
)
from aveyb_retrieval.indexes.store.words import LANGUAGES, language, read_synonyms
from aveyb_retrieval.indexes.types import EmbedderLike, PassageCutter, TokenEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec
    from aveyb_retrieval.indexes.types import Progress

Model = str | Path | EmbedderLike | None
"""A model folder or name, a loaded model, or None for the embedded default."""


_loading = threading.Lock()
_loaded: WeakValueDictionary[tuple[object, ...], EmbedderLike] = WeakValueDictionary()
"""Models that somebody uses: whoever asks for the same one as they did gets it."""


def load_model(
    model: Model,
    *,
    device: str = "cpu",
    precision: str = "auto",
    max_tokens: int | None = None,
    recorded: str | None = None,
) -> EmbedderLike:
    """Return a model ready to encode: a loaded one as it is, any other from its folder or name, and
    shared.

    ConfigError: an option is given that a loaded model has settled. ModelError: there is no usable
    model, or one of which an index has `recorded` the fingerprint would have to be fetched.
    IndexFormatError: it is another one.
    """
    if model is None or isinstance(model, (str, Path)):
        from aveyb_retrieval.encoder.embedders.loading import load_encoder

        key = (_place(model), device, precision, max_tokens)
        with _loading:
            loaded = _loaded.get(key)
            if loaded is None:
                loaded = load_encoder(
                    model,
                    device=device,
                    precision=precision,
                    max_tokens=max_tokens,
                    recorded=recorded,
                )
                _loaded[key] = loaded
        return loaded
    check_loaded(model, device=device, precision=precision, max_tokens=max_tokens)
    return model


def _place(model: str | Path | None) -> tuple[object, ...]:
    """What identifies the weights at a folder or name: a folder's files may be replaced."""
    if model is None or not Path(model).is_dir():
        return (None if model is None else str(model),)
    paths = sorted(Path(model).rglob("*"))
    return (
        str(Path(model).resolve()),
        *((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths),
    )


def _cutting(model: EmbedderLike, size: PassageSize | None) -> EmbedderLike:
    """The same model, cutting passages of this size, or raises ConfigError; None: in
    its own way.
    """
    if isinstance(model, PassageCutter):
        return model if model.passage_size == size else model.with_passage_size(size)
    if size is not None:
        raise ConfigError(
            f"passage_tokens={size.tokens}: the model {model.model_name} chooses the size of"
            " passages itself; leave it out"
        )
    return model


def _keeping_tokens(model: EmbedderLike, codec: TokenCodec | None) -> EmbedderLike:
    """The same model, which also gives the token vectors of documents, or raises ConfigError; None:
    without them.
    """
    if codec is None:
        return model
    if not isinstance(model, TokenEncoder):
        raise ConfigError(
            f"token_vectors={codec.storage!r}: the model {model.model_name} makes no token"
            " vectors of documents; leave it out"
        )
    return model.with_token_codec(codec)


def as_encoded(model: EmbedderLike, encoding: Encoding) -> EmbedderLike:
    """Return the same model, making of documents what an index has of them."""
    if getattr(model, "max_tokens", encoding.max_tokens) != encoding.max_tokens:
        limited: Any = copy.copy(model)
        limited.max_tokens, model = encoding.max_tokens, limited
    return _keeping_tokens(_cutting(model, encoding.passage_size), encoding.token_codec)


def load_recorded(
    places: Sequence[str], description: Mapping[str, Any], **options: Any
) -> EmbedderLike:
    """Load the model of an index by what the index says, which somebody else may have written.

    It is at one of `places`, best first; without any, it was the embedded one, or given loaded.
    `description` is its `model_description`. ModelError where it is not on this machine,
    IndexFormatError where another one is there.
    """
    if not places:
        return load_model(None, **options)
    tried: list[AveyBError] = []
    for place in places:
        try:
            return load_model(place, recorded=description["fingerprint"], **options)
        except (ModelError, IndexFormatError) as error:
            tried.append(error)
    if len(tried) == 1:
        raise tried[0]
    kind = next((type(error) for error in tried if isinstance(error, IndexFormatError)), ModelError)
    raise kind(
        f"the model of the index is in neither place: {'; '.join(map(str, tried))}. Say where it is"
        " (model=, --model)"
    )


def check_loaded(
    model: EmbedderLike, *, device: str, precision: str, max_tokens: int | None
) -> None:
    """Raise ConfigError where an option is given that a loaded model has settled already."""
    if not (hasattr(model, "encode_documents") and hasattr(model, "encode_queries")):
        raise ConfigError(
            f"model is of type {type(model).__name__}; give a folder, a name, or a loaded Embedder"
            " (or an object with its methods)"
        )
    loading = (
        ("device", device, "cpu"),
        ("precision", precision, "auto"),
        ("max_tokens", max_tokens, None),
    )
    for name, value, default in loading:
        if value != default:
            raise ConfigError(
                f"{name}={value!r} with the loaded model {model.model_name}: pass it to"
                " Embedder.load instead"
            )


Given = TypeVar("Given", bound="Mapping[str, Any]")
Vectors = str | Path | npt.NDArray[np.floating] | list[str | Path]
"""Ready-made vectors: a `.npy` or Parquet file, an array, an index, a folder of indexes, or several
indexes.
"""


class ReadOptions(TypedDict, total=False):
    """How a corpus is read.

    An index of a folder keeps `max_line`, `encoding`, `follow_links`, `file_seconds`,
    `path_fields`, `exclude`, `ocr_seconds` and `ocr_languages` for later syncs. A default that is
    given takes their place: of texts that may be None, "".

    Attributes:
        id_field: Field that holds the id; None is `_id`, else `id`, else an id is made.
        title_field: Field that holds the title. Default "title".
        text_field: Field that holds the text. Default "text".
        on_error: What to do with an item that is no document: "stop"; "skip" lists it in
            `Report.rejected_file` and goes on; "auto" (default) does so with files that were found
            in folders, and stops at all else.
        max_line: A line of the corpus, or the text of a file, has at most this many bytes; a longer
            one is no document.
        encoding: Of texts that are not UTF-8 and do not name their own, such as "cp1252".
        types: Types of columns of CSV and TSV files: "int", "float", "bool" or "string"; the others
            are inferred.
        follow_links: Also read links that are found in folders; without it they are left out, with
            a notice.
        file_seconds: Seconds of processor time that reading one file may take.
        path_fields: How paths of files below a folder become metadata, such as "{team}/{year}/*".
        exclude: Patterns of files and folders that are left out, as in a `.gitignore` file, such as
            ["old/", "*.log"]; a folder may also hold them in files `.aveybignore`.
        ocr_seconds: Seconds that OCR of one page may take. Default 60.
        ocr_languages: Languages of scanned pages as Tesseract names them, such as "deu+eng"; None
            (default) are all that are installed.
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
    path_fields: str | None
    exclude: Sequence[str]
    ocr_seconds: int
    ocr_languages: str | None


class WriteOptions(TypedDict, total=False):
    """How an index is written.

    Attributes:
        wait: Seconds to wait for another writer of the index to end. Default 0: an
            `IndexLockedError` at once.
        restart: Throw away the work of an interrupted change.
        progress: Called as the work goes on, with the stage, how much of it is done, of how much
            (None: not known), and tokens. Left out, a notebook shows a bar, other programs nothing.
    """

    wait: float
    restart: bool
    progress: Progress


class ModelOptions(TypedDict, total=False):
    """The model of a change, as in `EncodeOptions`."""

    model: Model
    device: str
    precision: str


class EncodeOptions(ModelOptions, total=False):
    """How documents are encoded, where an index is made; later changes take it from the index.

    Attributes:
        model: Model folder or name, or a loaded `Embedder`; None is the embedded default.
        device: Where the model runs. Default "cpu".
        precision: What it computes in: "auto" (default: "int8" by ONNX Runtime on a CPU where the
            model has that form, else "float32"), "float32", "bfloat16" or "float16"; see
            `Embedder.load`. Documents and queries may differ in it.
        granularity: "document", "passage" or "both" (default): which vectors are searched.
        storage_dtype: How vectors are kept on disk: "float32" (default), or "float16" for half the
            size and an error below 1e-3.
        max_tokens: Cut documents after this many tokens (counted in the report). None reads them
            whole.
        passage_tokens: Passages are runs of whole sentences of at most this many tokens, 16 to
            8,192. None is what the model was loaded with, 256 by default.
        passage_overlap: Passages begin with the last sentences of the one before, up to this many
            tokens, 0 to half of `passage_tokens`. None is what the model was loaded with, 0 by
            default.
        late: Encode passages within their document (True) or one by one (False). None is what the
            model was loaded with: within it for Avey-B models, which know no other way, one by one
            for sentence-transformers models.
        language: How words are found: "auto" (default: by the stemmer and stop words of the
            language that each document is written in), "english" or another language of
            `aveyb_retrieval.indexes.store.words.LANGUAGES` for all documents, or "none" (words as
            they are written). Scripts without spaces are found in all of them.
        keep_accents: Whether words with other accents are other words. Default False: `cafe` finds
            `café`, too.
        synonyms: The path of a small file of synonyms and protected words, or its lines: see
            `aveyb_retrieval.indexes.store.words`.
    """

    granularity: str
    storage_dtype: str
    max_tokens: int | None
    passage_tokens: int | None
    passage_overlap: int | None
    late: bool | None
    language: str
    keep_accents: bool
    synonyms: str | Path | list[str] | tuple[str, ...] | None


class BuildOptions(ReadOptions, EncodeOptions, WriteOptions, total=False):
    """Options of `build_index`: those of reading, encoding and writing, and these.

    Attributes:
        vectors: Ready-made vectors, one row per document: `.npy`, Parquet with a column `vector`,
            or an array; or an index, a folder of indexes (the shards of a corpus), or a list of
            these, which hold the documents, too: `corpus` is None then.
        from_index: An index, or a folder of shards, whose documents are encoded anew, with their
            metadata and files: nothing is parsed again, and words are found as there unless asked
            otherwise. `corpus` is None then.
        share: Take only this share of the corpus, as (1, 4) for the first of four: a shard, for
            `vectors`.
        index: "auto" (by size; default), "none" (every search is exact), or a FAISS factory string
            such as "HNSW32" or "IVF4096,Flat;nprobe=64", with settings of its searches (`nprobe`,
            `efSearch`, `rescore`).
        token_vectors: Also keep a vector of every token, as "int8" (128 bytes) or "1bit" (16), so
            that `rerank="maxsim"` encodes nothing again; None does not.
        allow_empty: Make the index also where the corpus holds no documents (`[]`), to add some
            later.
        overwrite: Replace an index that is already there; its readers keep what they have open.
            What people set in the metadata of documents whose ids come again stays.
    """

    vectors: Vectors | None
    from_index: str | Path | None
    share: tuple[int, int]
    index: str
    token_vectors: str | None
    allow_empty: bool
    overwrite: bool


class InsertOptions(ReadOptions, ModelOptions, total=False):
    """Options of documents that are added: those of reading, the model, and this of
    `build_index`.
    """

    vectors: Vectors | None


class SyncOptions(ReadOptions, ModelOptions, WriteOptions, total=False):
    """Options of `sync_index`: those of reading and writing, the model, and these.

    Attributes:
        only: Folders or files below the folder, such as "wiki/": nothing else of the index is
            looked at or changed.
        allow_delete: So many documents may go. None (default): a tenth of those that are looked at,
            or 5.
        moved: The folder is another one than the index was made from, in its place.
    """

    only: Sequence[str]
    allow_delete: int | None
    moved: bool


_CHOICES: dict[str, tuple[str, ...]] = {
    "granularity": tuple(GRANULARITIES),
    "storage_dtype": tuple(STORAGE_DTYPES),
    "on_error": ON_ERROR,
    "token_vectors": tuple(STORAGES),
}


def check_options(options: Given, known: type, function: str) -> Given:
    """Check names of options, and values of those that have only some; return those that are given,
    not None.
    """
    names = sorted(known.__annotations__)
    set_options = {
        name: value for name, value in options.items() if value is not None or name not in names
    }
    for name, value in set_options.items():
        if name not in names:
            raise ConfigError(no_option(function, name, names))
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ConfigError(
                f"{name}={value!r}: must be one of {', '.join(map(str, _CHOICES[name]))}"
            )
    check_wait(set_options.get("wait", 0))
    return cast("Given", set_options)


def check_wait(seconds: float) -> None:
    """Raise ConfigError where a time to wait is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise ConfigError(f"wait={seconds!r}: must be a number of seconds, 0 or more")


def word_rules(options: Mapping[str, Any]) -> dict[str, Any]:
    """How the options say that words are found; reads a file of synonyms, or raises ConfigError or
    InputError.
    """
    rules = {name: options[name] for name in WORD_RULES if name in options}
    if "language" in rules:
        rules["language"] = _language_name(rules["language"])
    if "synonyms" in rules:
        rules["synonyms"] = read_synonyms(rules["synonyms"])
    if not isinstance(rules.get("keep_accents", False), bool):
        raise ConfigError(f"keep_accents={rules['keep_accents']!r}: must be True or False")
    return rules


def _language_name(name: str) -> str:
    """Check the name of a language's rules."""
    if name == AUTO:
        return name
    if name not in LANGUAGES:
        languages = ", ".join((AUTO, *LANGUAGES))
        raise ConfigError(f"language={name!r}: must be one of {languages}")
    return language(name).name


_TEXTS_OR_NONE = ("encoding", "path_fields", "ocr_languages")


def reading_of(options: Mapping[str, Any]) -> Reading:
    """Return the `Reading` that options ask for."""
    names = {
        name: options[f"{name}_field"]
        for name in ("id", "title", "text")
        if f"{name}_field" in options
    }
    fields = {name: options[name] for name in Reading.__annotations__ if name in options}
    fields |= {name: None for name in _TEXTS_OR_NONE if fields.get(name) == ""}
    fields["types"] = dict(options.get("types") or {})
    patterns = options.get("exclude") or ()
    check_patterns(patterns)
    fields["exclude"] = tuple(pattern for pattern in patterns if pattern.strip())
    return Reading(FieldNames(**names), **fields)


def writing_of(options: Mapping[str, Any]) -> WriteOptions:
    """The options of writing among others."""
    return cast(
        "WriteOptions",
        {name: options[name] for name in WriteOptions.__annotations__ if name in options},
    )


def load_as_asked(options: Mapping[str, Any]) -> tuple[EmbedderLike, Encoding]:
    """Load the model that options ask for, and describe the vectors that it will make."""
    model = options.get("model")
    loading = {
        name: options[name] for name in ("device", "precision", "max_tokens") if name in options
    }
    embedder = load_model(model, **loading)
    size = {
        "tokens": options.get("passage_tokens"),
        "overlap": options.get("passage_overlap"),
        "late": options.get("late"),
    }
    size = {name: value for name, value in size.items() if value is not None}
    if size:
        embedder = _cutting(
            embedder, replace(getattr(embedder, "passage_size", None) or DEFAULT_SIZE, **size)
        )
    # what it is loaded by again, from wherever that is asked
    is_named = isinstance(model, (str, Path))
    source: str | None = str(model if is_named else getattr(model, "model_name", ""))
    if source and Path(source).is_dir():  # a loaded one by its folder, if it was in one
        source = os.path.abspath(source)  # `absolute` keeps ".."  # noqa: PTH100
    elif not is_named:
        source = None
    encoding = Encoding.of_model(
        embedder,
        source=source,
        granularity=options.get("granularity", "both"),
        storage_dtype=options.get("storage_dtype", "float32"),
        max_tokens=options.get("max_tokens"),
        token_vectors=options.get("token_vectors"),
        **word_rules(options),
    )
    return _keeping_tokens(embedder, encoding.token_codec), encoding
