"""Collections from folders and from small local copies in the hub's schemas; and what is said of
broken ones.
"""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval import data
from aveyb_retrieval.eval.data import Corpus, Document, load_dataset
from aveyb_retrieval.eval.tasks import PAPER, STANDARD, make_task
from tests.eval.toys import DOCUMENTS, JUDGEMENTS, QUERIES, write_folder
from tests.jsonl import write_jsonl
from tests.refusals import Refusal, refusals


def test_folder(tmp_path):
    dataset = load_dataset(str(write_folder(tmp_path / "toy", spans=True)))
    assert [document.id for document in dataset.corpus] == ["d1", "d2", "d3", "d4", "d5"]
    assert dataset.corpus.get("d1").title == "Bees"
    assert set(dataset.splits) == {"dev", "test"}
    assert dataset.splits["test"].judgements == {q: JUDGEMENTS[q] for q in ("q1", "q2", "q3")}
    assert dataset.spans["q1"] == {"d1": [(0, 54)]}


def test_train_judgements_are_read_only_on_request(tmp_path):
    folder = write_folder(tmp_path / "toy")
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td4\t1\n")
    assert "train" not in load_dataset(str(folder)).splits
    assert load_dataset(str(folder), "train").splits["train"].judgements == {"q4": {"d4": 1}}


def _break(folder, name, text):
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "corpus.jsonl",
            '{"_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}\n',
            "'d1' occurs more than once",
        ),
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d2"\n', "line 2: not JSON"),
        ("corpus.jsonl", '{"_id": "d1"}\n', "line 1: 'text' must be text, not None"),
        ("corpus.jsonl", '{"_id": "", "text": "x"}\n', "'_id' must be a non-empty id"),
        (
            "corpus.jsonl",
            '{"_id": "d\\ud800", "text": "x"}\n',
            "line 1: .*half of a surrogate pair",
        ),
        ("corpus.jsonl", "[1]\n", "a JSON object is needed"),
        ("corpus.jsonl", "", "the corpus is empty"),
        (
            "corpus.jsonl",
            '{"_id": "x", "text": "x"}\n',
            "not in the corpus: 3 judged documents .all there are.",
        ),
        (
            "queries.jsonl",
            '{"_id": "q1", "text": "a"}\n{"_id": "q1", "text": "b"}\n',
            "line 2: the query id 'q1' occurs",
        ),
        (
            "queries.jsonl",
            '{"_id": "q1", "text": "a"}\n',
            "no text in queries.jsonl for 2 judged queries",
        ),
        (
            "queries.jsonl",
            "".join(f'{{"_id": "q{i}", "text": "{" " * i}"}}\n' for i in (1, 2, 3)),
            "test.tsv: 3 judged queries have an empty text, e.g. 'q1'",
        ),
        *(
            ("spans.jsonl", json.dumps({"query-id": "q1", **row}), message)
            for row, message in (
                (
                    {"corpus-id": "none", "spans": [[0, 3]]},
                    "line 1: the document 'none' is not in the corpus",
                ),
                ({"corpus-id": "d1", "spans": [[0, 9999]]}, "does not lie in the"),
                ({"corpus-id": "d1", "spans": [[5, 5]]}, "does not lie in the"),
                ({"corpus-id": "d1", "spans": [3]}, "must be a list of"),
                ({"corpus-id": "d1", "spans": []}, "else leave the line out"),
            )
        ),
    ],
)
def test_broken_folders(tmp_path, name, text, message):
    folder = write_folder(tmp_path / "toy", dev=False)
    _break(folder, name, text)
    with pytest.raises(InputError, match=message):
        load_dataset(str(folder))


def test_judged_document_outside_the_corpus_stays_with_a_notice(tmp_path):
    folder = write_folder(tmp_path / "toy")
    with (folder / "qrels" / "test.tsv").open("a") as file:
        file.write("q1\tgone\t2\n")
    task = make_task(load_dataset(str(folder)))
    assert task.judgements["q1"]["gone"] == 2
    assert any(
        "not in the corpus: 1 judged document, e.g. 'gone'" in notice for notice in task.notices
    )


@pytest.mark.parametrize(("written", "judged"), [("d1 ", "d1"), ("d1", "\u3000d1"), ('"d1"', "d1")])
def test_an_id_that_differs_in_blanks_or_quotes_is_told(tmp_path, written, judged):
    folder = write_folder(tmp_path / "toy", dev=False)
    write_jsonl(
        folder / "corpus.jsonl", [{"_id": written, "text": "x"}, {"_id": "d2", "text": "y"}]
    )
    (folder / "qrels" / "test.tsv").write_text(f"q1\t{judged}\t1\nq2\td2\t1\n")
    with pytest.raises(InputError, match="in the corpus: ids are compared as they are written"):
        load_dataset(str(folder))


@pytest.mark.parametrize(
    "name", ["d1 ", "\u3000d", '12" pump', '"d"', "a\u2028b", "a\x85", "caf\u00e9\u0301", "0"]
)
def test_an_id_is_read_as_it_is_written(tmp_path, name):
    folder = write_folder(tmp_path / "toy", dev=False)
    write_jsonl(folder / "corpus.jsonl", [{"_id": name, "text": "x"}, {"_id": "d2", "text": "y"}])
    write_jsonl(folder / "queries.jsonl", [{"_id": name, "text": "what"}])
    with (folder / "qrels" / "test.tsv").open("w", newline="") as out:
        csv.writer(out, delimiter="\t").writerows(
            [["query-id", "corpus-id", "score"], [name, name, 1]]
        )
    dataset = load_dataset(str(folder))
    assert (
        dataset.splits["test"].judgements == {name: {name: 1}}
        and dataset.splits["test"].notices == ()
    )
    assert list(make_task(dataset).queries) == [name]


def load_without_qrels(folder):
    write_folder(folder, dev=False)
    (folder / "qrels" / "test.tsv").unlink()
    load_dataset(str(folder))


@refusals(
    {
        InputError: {
            r"neither a folder nor a known data set; known are mldr, ": lambda folder: load_dataset(
                "nothing-like-it"
            ),
            r"no qrels": load_without_qrels,
        },
    }
)
def test_what_is_no_data_set_is_refused(tmp_path, refused: Refusal):
    refused(tmp_path / "toy")


README = """---
configs:
- config_name: default
  data_files:
  - {split: dev, path: qrels/dev.jsonl}
  - {split: test, path: qrels/test.jsonl}
- config_name: corpus
  data_files:
  - {split: corpus, path: corpus.jsonl}
- config_name: queries
  data_files:
  - {split: queries, path: queries.jsonl}
---
"""


def write_hub_beir(folder):
    """A local copy with the files and columns of the BEIR mirrors on the hub."""
    folder.mkdir()
    (folder / "README.md").write_text(README)
    write_jsonl(
        folder / "corpus.jsonl", [{"_id": d, "title": t, "text": x} for d, t, x in DOCUMENTS]
    )
    write_jsonl(folder / "queries.jsonl", [{"_id": q, "text": t} for q, t in QUERIES.items()])
    for split, queries in (("test", ["q1", "q2", "q3"]), ("dev", ["q4"])):
        rows = [
            {"query-id": q, "corpus-id": d, "score": float(g)}
            for q in queries
            for d, g in JUDGEMENTS[q].items()
        ]
        write_jsonl(folder / "qrels" / f"{split}.jsonl", rows)
    return folder


def test_the_other_spelling_of_the_beir_schema(tmp_path, datasets_cache):
    """Judgements under `qrels`, ids under `id`."""
    copy = write_hub_beir(tmp_path / "copy")
    (copy / "README.md").write_text(README.replace("config_name: default", "config_name: qrels"))
    for name in ("corpus.jsonl", "queries.jsonl"):
        (copy / name).write_text((copy / name).read_text().replace('"_id"', '"id"'))
    dataset = load_dataset(f"trec-dl-2020={copy}")
    assert dataset.splits["test"].judgements["q1"] == {"d1": 2, "d3": 0}
    assert dataset.corpus.get("d2").title == "Bread"


def write_hub_mldr(folder, language="en"):
    """A local copy with the files and columns of MLDR on the hub."""
    base = folder / f"mldr-v1.0-{language}"
    base.mkdir(parents=True)
    texts = {d: x for d, _, x in DOCUMENTS}

    def dump(name, rows):
        with gzip.open(base / f"{name}.jsonl.gz", "wt", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)

    dump("corpus", [{"docid": d, "text": x} for d, x in texts.items()])
    for split, queries in (("test", ["q1", "q2", "q3"]), ("dev", ["q4"])):
        dump(
            split,
            [
                {
                    "query_id": q,
                    "query": QUERIES[q],
                    "negative_passages": [],
                    "positive_passages": [
                        {"docid": d, "text": texts[d]} for d, g in JUDGEMENTS[q].items() if g
                    ],
                }
                for q in queries
            ],
        )
    return folder


@pytest.fixture
def datasets_cache(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


def test_msmarco_schema(tmp_path, datasets_cache):
    dataset = load_dataset(f"msmarco={write_hub_beir(tmp_path / 'copy')}")
    assert dataset.name == "msmarco"
    assert dataset.splits["dev"].judgements == {"q4": JUDGEMENTS["q4"]}
    # graded, as TREC DL 2019 is
    assert dataset.splits["dl19"].judgements["q1"] == {"d1": 2, "d3": 0}
    assert [document.id for document in dataset.corpus] == [d for d, _, _ in DOCUMENTS]
    assert dataset.corpus.get("d2").title == "Bread"
    assert make_task(dataset).split == "dev"
    assert make_task(dataset, PAPER).split == "dl19"  # that code's "test"


def test_two_folders_of_one_name_and_a_changed_file(tmp_path, datasets_cache):
    first = write_hub_beir(tmp_path / "copy")
    (tmp_path / "other").mkdir()
    second = write_hub_beir(tmp_path / "other" / "copy")
    write_jsonl(
        second / "corpus.jsonl",
        [{"_id": d, "title": "", "text": "another"} for d, _, _ in DOCUMENTS],
    )
    one, other = load_dataset(f"nq={first}"), load_dataset(f"scifact={second}")
    assert one.corpus.get("d1").text != "another" == other.corpus.get("d1").text
    write_jsonl(first / "queries.jsonl", [{"_id": q, "text": "edited"} for q in QUERIES])
    assert load_dataset(f"nq={first}").queries["test"]["q1"] == "edited"


def test_ids_keep_their_form_and_splits_their_queries(tmp_path, datasets_cache):
    base = write_hub_mldr(tmp_path / "copy") / "mldr-v1.0-en"
    for split, text in (("dev", "of dev"), ("test", "of test")):
        row = {"query_id": "2020-01-01", "query": text, "positive_passages": [{"docid": "d1"}]}
        (base / f"{split}.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    dataset = load_dataset(f"mldr={tmp_path / 'copy'}")
    assert dataset.queries == {"dev": {"2020-01-01": "of dev"}, "test": {"2020-01-01": "of test"}}
    assert (
        make_task(dataset, split="dev").queries
        == make_task(dataset, PAPER, "dev").queries
        == dataset.queries["dev"]
    )


@pytest.mark.parametrize(
    ("file", "rows", "message"),
    [
        (
            "queries.jsonl",
            [{"_id": "q1", "text": "a"}] * 2,
            "line 2: the query id 'q1' occurs more than once",
        ),
        ("queries.jsonl", [{"_id": "q1", "text": None}], "line 1: 'text' must be text, not None"),
        ("corpus.jsonl", [{"_id": "d1", "text": None}], "line 1: 'text' must be text, not None"),
        (
            "corpus.jsonl",
            [{"_id": 1.5, "text": "x"}],
            "line 1: '_id' must be a non-empty id, not 1.5",
        ),
        (
            "qrels/test.jsonl",
            [{"query-id": "q1", "corpus-id": "d1", "score": None}],
            "line 1: the grade None",
        ),
        (
            "qrels/test.jsonl",
            [{"query-id": None, "corpus-id": "d1", "score": 1}],
            "line 1: 'query-id' must be",
        ),
    ],
)
def test_broken_copies(tmp_path, datasets_cache, file, rows, message):
    copy = write_hub_beir(tmp_path / "copy")
    write_jsonl(copy / file, rows)
    with pytest.raises(InputError, match=message):
        load_dataset(f"nq={copy}")


def test_parquet_and_tsv_have_the_types_that_they_declare(tmp_path, datasets_cache):
    import pyarrow as pa
    import pyarrow.parquet as pq

    copy = write_hub_beir(tmp_path / "copy")
    (copy / "README.md").write_text(
        README.replace("corpus.jsonl", "corpus.parquet")
        .replace("test.jsonl", "test.tsv")
        .replace("dev.jsonl", "dev.tsv")
    )
    rows = {"_id": ["2020-01-01", "007"], "title": [None, "T"], "text": ["x", "y"]}
    pq.write_table(pa.table(rows), copy / "corpus.parquet")
    for split in ("dev", "test"):
        (copy / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t007\t1\n")
    dataset = load_dataset(f"nq={copy}")
    assert (
        dataset.corpus.ids == ["2020-01-01", "007"] and dataset.corpus.get("2020-01-01").title == ""
    )
    assert dataset.splits["test"].judgements == {"q1": {"007": 1}}
    (copy / "corpus.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"corpus.parquet: cannot be read as Parquet"):
        load_dataset(f"nq={copy}")


def test_nq_schema(tmp_path, datasets_cache):
    dataset = load_dataset(f"nq={write_hub_beir(tmp_path / 'copy')}")
    assert set(dataset.splits) == {"test"}
    assert dataset.queries["test"]["q2"] == QUERIES["q2"]


@pytest.mark.parametrize(("name", "language"), [("mldr", "en"), ("mldr-de", "de")])
def test_mldr_schema(tmp_path, datasets_cache, name, language):
    dataset = load_dataset(f"{name}={write_hub_mldr(tmp_path / 'copy', language)}")
    assert dataset.splits["test"].judgements["q3"] == {"d3": 1, "d1": 1}
    assert dataset.splits["dev"].judgements == {"q4": {"d4": 1}}
    assert dataset.queries == {
        "test": {q: QUERIES[q] for q in ("q1", "q2", "q3")},
        "dev": {"q4": QUERIES["q4"]},
    }
    assert dataset.corpus.get("d3").text.startswith("Tides")
    reduced = make_task(dataset, PAPER)
    assert set(reduced.corpus.ids) == {"d1", "d2", "d3", "d4"}
    assert [document.id for document in reduced.corpus] == ["d1", "d2", "d3", "d4"]


def test_corpus_fingerprint_is_the_same_from_disk_and_from_the_hub(tmp_path, datasets_cache):
    local = load_dataset(str(write_folder(tmp_path / "toy"))).corpus
    copy = load_dataset(f"nq={write_hub_beir(tmp_path / 'copy')}").corpus
    assert local.fingerprint == copy.fingerprint
    other = Corpus([Document("d1", "Be", "es")], "x")
    assert other.fingerprint != Corpus([Document("d1", "B", "ees")], "x").fingerprint


def test_a_copy_of_links_as_the_cache_of_the_hub_has_it(tmp_path, datasets_cache):
    copy = write_hub_beir(tmp_path / "copy")
    for number, path in enumerate(sorted(path for path in copy.rglob("*") if path.is_file())):
        path.rename(tmp_path / f"blob{number}")
        path.symlink_to(tmp_path / f"blob{number}")
    assert load_dataset(f"nq={copy}").splits["test"].judgements["q1"] == {"d1": 2, "d3": 0}


def lose_an_id(copy):
    write_jsonl(copy / "queries.jsonl", [{"key": "q1", "text": "x"}])


@refusals(
    {
        InputError: {
            r"no split 'train'|mldr-v1.0-LANG": lambda copy: load_dataset(f"mldr={copy}"),
            r"not a known data set": lambda copy: load_dataset(f"nonsense={copy}"),
            r"no such folder": lambda copy: load_dataset(f"nq={copy / 'nowhere'}"),
            r"queries.jsonl, line 1: '_id' must be a non-empty id, not None": lambda copy: (
                lose_an_id(copy),
                load_dataset(f"nq={copy}"),
            ),
        },
    }
)
def test_wrong_copies_are_refused(tmp_path, datasets_cache, refused: Refusal):
    refused(write_hub_beir(tmp_path / "copy"))


def test_offline_says_what_is_missing_and_a_saved_cache_works(
    tmp_path, monkeypatch, datasets_cache
):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    entry = data.REGISTRY["nq"]
    with pytest.raises(
        InputError, match=rf"--revision {entry.revision} .*--local-dir DIR.* --data nq=DIR"
    ):
        load_dataset("nq")
    saved = tmp_path / "hub" / ("datasets--" + entry.repo.replace("/", "--"))
    (saved / "snapshots").mkdir(parents=True)
    write_hub_beir(saved / "snapshots" / entry.revision)
    dataset = load_dataset("nq")
    assert dataset.splits["test"].judgements["q2"] == {"d2": 1}
    assert dataset.source == f"{entry.repo}@{entry.revision[:12]}"


def test_every_known_name_is_pinned():
    assert len([name for name in data.REGISTRY if name.startswith("mldr")]) == 13
    assert {"msmarco", "trec-dl-2019", "trec-dl-2020", "nq", "scifact"} <= set(data.REGISTRY)
    for name, entry in data.REGISTRY.items():
        assert len(entry.revision) == 40 and int(entry.revision, 16), name


def test_queries_are_drawn_as_documented(tmp_path):
    import numpy as np

    dataset = load_dataset(str(write_folder(tmp_path / "toy")))
    task = make_task(dataset, max_queries=2, seed=5)
    order = list(dataset.splits["test"].judgements)
    assert list(task.judgements) == [order[i] for i in np.random.default_rng(5).permutation(3)[:2]]
    assert list(task.queries) == list(task.judgements)
    assert make_task(dataset, max_queries=3).fingerprint == make_task(dataset).fingerprint
    assert make_task(dataset).protocol is STANDARD
    with pytest.raises(ConfigError, match=r"at least 1"):
        make_task(dataset, max_queries=0)
    with pytest.raises(InputError, match=r"no split 'train'; there are dev, test"):
        make_task(dataset, split="train")
