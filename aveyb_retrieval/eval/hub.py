"""Public data sets by name, at pinned revisions.

Everything goes through a local folder: a hub name is first resolved to the snapshot of one exact commit in the Hugging
Face cache (downloaded when it can be, used from the cache when offline), then opened by the same code that opens a
local copy. So a saved cache works without the network, and the tests exercise the real loaders on small folders of the
same schema.

Two schemas cover all of them:

- `beir` (the `mteb/...` mirrors of BEIR): configurations `corpus` (`_id`, `title`, `text`), `queries` (`_id`, `text`)
  and `default` or `qrels` (`query-id`, `corpus-id`, `score`), one split of it per judged split; some call `_id` `id`;
- `mldr` (`Shitao/MLDR`): `mldr-v1.0-LANG/corpus.jsonl.gz` (`docid`, `text`), and `dev.jsonl.gz` and `test.jsonl.gz`
  (`query_id`, `query`, `positive_passages`). Its loading script is not run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import InputError, OptionalDependencyError
from aveyb_retrieval.eval.datasets import Corpus, Dataset, checked_qrels
from aveyb_retrieval.eval.qrels import Qrels, collect_qrels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MLDR_LANGUAGES = ("en", "ar", "de", "es", "fr", "hi", "it", "ja", "ko", "pt", "ru", "th", "zh")


@dataclass(frozen=True)
class HubSet:
    """Where a data set lives and which of its splits are judged; `splits` maps our names to the hub's."""

    repo: str
    revision: str
    schema: str
    splits: dict[str, str]
    patterns: tuple[str, ...]
    language: str = "en"


def _beir(repo: str, revision: str, **splits: str) -> HubSet:
    patterns = ("README.md", "*corpus*", "*queries*", "*qrels*", "data/*", "default/*")
    return HubSet(repo, revision, "beir", splits or {"test": "test"}, patterns)


def _mldr(language: str) -> HubSet:
    files = tuple(f"mldr-v1.0-{language}/{name}.jsonl.gz" for name in ("corpus", "dev", "test"))
    revision = "d67138e705d963e346253a80e59676ddb418810a"
    return HubSet("Shitao/MLDR", revision, "mldr", {"dev": "dev", "test": "test"}, files, language)


_CQADUPSTACK = {
    "english": "ad9991cb51e31e31e430383c75ffb2885547b5f0",
    "gaming": "4885aa143210c98657558c04aaf3dc47cfb54340",
    "gis": "5003b3064772da1887988e05400cf3806fe491f2",
    "mathematica": "90fceea13679c63fe563ded68f3b6f06e50061de",
    "physics": "79531abbd1fb92d06c6d6315a0cbbbf5bb247ea4",
    "programmers": "6184bc1440d2dbc7612be22b50686b8826d22b32",
    "stats": "65ac3a16b8e91f9cee4c9828cc7c335575432a2a",
    "tex": "46989137a86843e03a6195de44b09deda022eec7",
    "unix": "6c6430d3a6d36f8d2a829195bc5dc94d7e063e53",
    "webmasters": "160c094312a0e1facb97e55eeddb698c0abe3571",
    "wordpress": "4ffe81d471b1924886b33c7567bfb200e9eec5c4",
}

REGISTRY: dict[str, HubSet] = {
    **{("mldr" if lang == "en" else f"mldr-{lang}"): _mldr(lang) for lang in MLDR_LANGUAGES},
    # BEIR's "test" of MS MARCO is TREC DL 2019 (43 queries, graded); "dev" is the split to quote
    "msmarco": _beir("mteb/msmarco", "c5a29a104738b98a9e76336939199e264163d4a0", dev="dev", dl19="test"),
    "trec-dl-2019": _beir("whybe-choi/trec-dl-2019", "cbb055c2528c544edf84db8ec6aef1885ec8cfda"),
    "trec-dl-2020": _beir("whybe-choi/trec-dl-2020", "83d7d3532f3fa653f132da188bbaa852d959d6f9"),
    "nq": _beir("mteb/nq", "b774495ed302d8c44a3a7ea25c90dbce03968f31"),
    "arguana": _beir("mteb/arguana", "c22ab2a51041ffd869aaddef7af8d8215647e41a"),
    "climate-fever": _beir("mteb/climate-fever", "47f2ac6acb640fc46020b02a5b59fdda04d39380"),
    "cqadupstack-android": _beir("mteb/CQADupstackAndroidRetrieval", "9be4c0e46342e8e3aff577a89b9a1ec9bc6b4af3"),
    **{f"cqadupstack-{forum}": _beir(f"mteb/cqadupstack-{forum}", rev) for forum, rev in _CQADUPSTACK.items()},
    "dbpedia": _beir("mteb/dbpedia", "c0f706b76e590d620bd6618b3ca8efdd34e2d659", dev="dev", test="test"),
    "fever": _beir("mteb/fever", "bea83ef9e8fb933d90a2f1d5515737465d613e12", dev="dev", test="test"),
    "fiqa": _beir("mteb/fiqa", "27a168819829fe9bcd655c2df245fb19452e8e06", dev="dev", test="test"),
    "hotpotqa": _beir("mteb/hotpotqa", "ab518f4d6fcca38d87c25209f94beba119d02014", dev="dev", test="test"),
    "nfcorpus": _beir("mteb/nfcorpus", "ec0fa4fe99da2ff19ca1214b7966684033a58814", dev="dev", test="test"),
    "quora": _beir("mteb/quora", "e4e08e0b7dbe3c8700f0daef558ff32256715259", dev="dev", test="test"),
    "scidocs": _beir("mteb/scidocs", "f8c2fcf00f625baaa80f62ec5bd9e1fff3b8ae88"),
    "scifact": _beir("mteb/scifact", "d56462d0e63a25450459c4f213e49ffdb866f7f9"),
    "touche2020": _beir("mteb/touche2020", "a34f9a33db75fa0cbb21bb5cfc3dae8dc8bec93f"),
    "trec-covid": _beir("mteb/trec-covid", "bb9466bac8153a0349341eb1b22e06409e78ef4e"),
}


def names() -> list[str]:
    """Return the known data set names."""
    return list(REGISTRY)


def load_from_hub(name: str) -> Dataset:
    """Open a known data set at its pinned revision, from the hub or from its local cache.

    Raises:
        InputError: not in the cache and the hub cannot be reached; the message says how to get a local copy.
        OptionalDependencyError: `datasets` is not installed.
    """
    _require_datasets()
    entry = REGISTRY[name]
    folder = _snapshot(name, entry)
    return _LOADERS[entry.schema](name, entry, folder, f"{entry.repo}@{entry.revision[:12]}")


def load_local_copy(name: str, folder: Path) -> Dataset:
    """Open a folder that holds a copy of the known hub data set `name` (as `hf download --local-dir` makes it).

    Raises:
        InputError: unknown name, no such folder, or its files do not have the data set's schema.
        OptionalDependencyError: `datasets` is not installed.
    """
    if name not in REGISTRY:
        raise InputError(f"{name!r} is not a known data set; known are {', '.join(names())}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (looking for a local copy of {name})")
    _require_datasets()
    entry = REGISTRY[name]
    return _LOADERS[entry.schema](name, entry, folder, f"{folder} (local copy of {entry.repo})")


def _require_datasets() -> None:
    from importlib.util import find_spec

    if find_spec("datasets") is None:
        raise OptionalDependencyError("datasets", "hub", "data sets from the Hugging Face hub")


def _snapshot(name: str, entry: HubSet) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    options: dict[str, Any] = {
        "repo_type": "dataset",
        "revision": entry.revision,
        "allow_patterns": list(entry.patterns),
    }
    try:
        return Path(snapshot_download(entry.repo, **options))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, ConnectionError) as error:
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        include = " ".join(f"--include '{pattern}'" for pattern in entry.patterns)
        raise InputError(
            f"{name}: {entry.repo} at revision {entry.revision} is not in the Hugging Face cache, and the hub gave no "
            f"answer{offline}: {type(error).__name__}. On a machine with the network run\n  hf download --repo-type "
            f"dataset {entry.repo} --revision {entry.revision} {include} --local-dir DIR\nand pass --data {name}=DIR, "
            "or copy the cache folder here and point HF_HOME at it"
        ) from error


def _load_beir(name: str, entry: HubSet, folder: Path, source: str) -> Dataset:
    import datasets

    documents, document_id = _identified(_table(folder, "corpus", None, ("text",)))
    corpus = Corpus(documents, f"{source}, corpus", id_field=document_id)
    texts, query_id = _identified(_table(folder, "queries", None, ("text",)))
    queries = {str(row[query_id]): row["text"] for row in texts}
    config = "default" if "default" in datasets.get_dataset_config_names(str(folder)) else "qrels"
    splits = {}
    for ours, theirs in entry.splits.items():
        table = _table(folder, config, theirs, ("query-id", "corpus-id", "score"))
        where = f"{source}, qrels {theirs}"
        rows = ((str(row["query-id"]), str(row["corpus-id"]), row["score"]) for row in table)
        splits[ours] = checked_qrels(collect_qrels(rows, where), corpus, queries, where)
    return Dataset(name, source, corpus, queries, splits)


def _identified(table: Any) -> tuple[Any, str]:
    """Return the table and the name of its id column."""
    name = "id" if "id" in table.column_names and "_id" not in table.column_names else "_id"
    return _with_columns(table, (name,), "this data set"), name


def _table(folder: Path, config: str, split: str | None, columns: tuple[str, ...]) -> Any:
    """Return one configuration of a data set folder as a memory-mapped `datasets.Dataset`, its columns checked."""
    import datasets

    try:
        loaded = datasets.load_dataset(str(folder), config)
    except (ValueError, FileNotFoundError, datasets.exceptions.DatasetGenerationError) as error:
        raise InputError(f"{folder}: the configuration {config!r} cannot be read: {error}") from error
    if split is None:
        if len(loaded) != 1:
            raise InputError(
                f"{folder}: configuration {config!r} has the splits {sorted(loaded)}, expected exactly one"
            )
        split = next(iter(loaded))
    if split not in loaded:
        raise InputError(f"{folder}: configuration {config!r} has no split {split!r}; there are {sorted(loaded)}")
    return _with_columns(loaded[split], columns, f"{folder}, {config}/{split}")


def _load_mldr(name: str, entry: HubSet, folder: Path, source: str) -> Dataset:
    base = folder / f"mldr-v1.0-{entry.language}"
    corpus_rows = _json_lines(base / "corpus.jsonl.gz", ("docid", "text"))
    corpus = Corpus(corpus_rows, f"{source}, corpus", id_field="docid")
    queries: dict[str, str] = {}
    splits: dict[str, Qrels] = {}
    for split in entry.splits:
        rows = _json_lines(base / f"{split}.jsonl.gz", ("query_id", "query", "positive_passages"))
        judgements: list[tuple[str, str, object]] = []
        for row in rows:
            queries[str(row["query_id"])] = row["query"]
            judgements.extend((str(row["query_id"]), str(p["docid"]), 1) for p in row["positive_passages"])
        where = f"{source}, {split}"
        splits[split] = checked_qrels(collect_qrels(judgements, where), corpus, queries, where)
    return Dataset(name, source, corpus, queries, splits)


def _json_lines(path: Path, columns: tuple[str, ...]) -> Any:
    import datasets

    if not path.is_file():
        raise InputError(f"{path}: no such file; an MLDR copy holds mldr-v1.0-LANG/{{corpus,dev,test}}.jsonl.gz")
    try:
        table = datasets.load_dataset("json", data_files=str(path), split="train")
    except (ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise InputError(f"{path}: not gzip-compressed JSON lines: {error}") from error
    return _with_columns(table, columns, str(path))


def _with_columns(table: Any, columns: Iterable[str], where: str) -> Any:
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise InputError(f"{where}: no column {missing[0]!r}; there are {table.column_names}")
    return table


_LOADERS: dict[str, Callable[[str, HubSet, Path, str], Dataset]] = {"beir": _load_beir, "mldr": _load_mldr}
