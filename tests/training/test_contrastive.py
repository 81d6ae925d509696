import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.training import trainer
from aveyb_retrieval.training.contrastive import (
    duplicate_labels,
    false_negatives,
    ranking_loss,
    read_pairs,
    train_contrastive,
)
from aveyb_retrieval.training.run_folder import TrainingRun, read_metrics
from aveyb_retrieval.training.settings import ContrastiveSettings
from aveyb_retrieval.training.trainer import shared_arguments
from tests.jsonl import write_jsonl
from tests.recorder import record_calls

from .conftest import (
    OBJECTS,
    SENTENCES,
    SUBJECTS,
    VERBS,
    in_two_processes,
    make_student,
)
from .test_mlm import NaNAt, StopAfter, same, same_to

SETTINGS = ContrastiveSettings(
    steps=6, batch_size=8, learning_rate=1e-3, precision="float32", log_every=1, save_every=100
)
DATA = {"pairs": "written in the tests"}
# MS MARCO's schema: a question, the sentence that answers it, and one that shares words with it but
# does not.
TRIPLETS = [
    {
        "query": f"when {verb} {subject} {thing}?",
        "positive": f"{subject} {verb} {thing} before noon.",
        "negative": f"{subject} {VERBS[(i + 1) % len(VERBS)]} {thing} before noon.",
    }
    for subject in SUBJECTS
    for i, verb in enumerate(VERBS)
    for thing in OBJECTS
]


def ndcg_at_10(model, queries: list[str], relevant: list[str], corpus: list[str]) -> float:
    """With one relevant text for each query: the mean of 1 / log2(rank + 1) over those found in the
    first ten.
    """
    scores = model.encode_query(queries) @ model.encode_document(corpus).T
    own = scores[np.arange(len(queries)), [corpus.index(text) for text in relevant]]
    ranks = 1 + (scores > own[:, None]).sum(1)
    return float(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0).mean())


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_machine_without_a_gpu_trains_by_default(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        **shared_arguments(ContrastiveSettings(), TrainingRun(tmp_path, {}))
    )
    assert arguments.bf16 and arguments.device.type == "cpu"


def test_msmarco_schema_improves_ndcg(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    held_out, trained = TRIPLETS[::7], [t for i, t in enumerate(TRIPLETS) if i % 7]
    model = make_student(
        tmp_path / "start", tokenizer, prompts={"query": "Query: ", "document": "Document: "}
    )
    question = [t["query"] for t in held_out], [t["positive"] for t in held_out], SENTENCES
    before = ndcg_at_10(model, *question)
    folder = train_contrastive(
        model,
        read_pairs([write_jsonl(tmp_path / "train.jsonl", trained)]),
        TrainingRun(tmp_path / "run", DATA, device="cpu"),
        settings=replace(
            SETTINGS, steps=20, batch_size=16, learning_rate=8e-3, log_every=20, micro_batch=8
        ),
    )
    assert ndcg_at_10(model, *question) > before + 0.1
    again = SentenceTransformer(str(folder), device="cpu")
    assert again.prompts == {"query": "Query: ", "document": "Document: "}
    assert ndcg_at_10(again, *question) == pytest.approx(ndcg_at_10(model, *question), abs=1e-6)
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["prompts"]["negative"]
        == "Document: "
    )


def test_interrupted_and_resumed_equals_unbroken(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    pairs = read_pairs([write_jsonl(tmp_path / "train.jsonl", TRIPLETS)])

    def run(name: str, resume: bool = False):
        model = make_student(tmp_path / f"{name}-start", tokenizer)
        train_contrastive(
            model,
            pairs,
            TrainingRun(tmp_path / name, DATA, resume=resume, device="cpu"),
            settings=SETTINGS,
        )
        return model

    whole = run("whole")
    with pytest.MonkeyPatch.context() as patch:
        StopAfter(patch, 3)
        run("broken")
    assert same(whole, run("broken", resume=True))
    losses = [
        [m["loss"] for m in read_metrics(tmp_path / f / "metrics.jsonl") if "loss" in m]
        for f in ("whole", "broken")
    ]
    assert losses[0] == losses[1]


def test_nan_stops_and_the_last_good_checkpoint_goes_on(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    pairs = read_pairs([write_jsonl(tmp_path / "train.jsonl", TRIPLETS)])

    def run(name: str, resume: bool = False, **changes: object):
        model = make_student(tmp_path / f"{name}-start", tokenizer, **changes)
        settings = replace(SETTINGS, save_every=2)
        train_contrastive(
            model,
            pairs,
            TrainingRun(tmp_path / name, DATA, resume=resume, device="cpu"),
            settings=settings,
        )
        return model

    with pytest.MonkeyPatch.context() as patch:
        NaNAt(patch, 3)
        with pytest.raises(
            InputError, match=r"batch at step 4 is nan: stopped, nothing was .* is .*checkpoint-2"
        ):
            run("bad")
    assert not (tmp_path / "bad" / "model").exists()
    with pytest.raises(ModelError, match="belongs to another model"):
        run("bad", resume=True, hidden_size=48)
    assert same(run("bad", resume=True), run("good"))


def test_cached_gradients_equal_whole_batch(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    model = make_student(tmp_path, tokenizer)
    features = [model.preprocess([t[side] for t in TRIPLETS[:8]]) for side in ("query", "positive")]
    gradients = []
    for micro_batch in (8, 3):
        model.zero_grad()
        ranking_loss(model, micro_batch=micro_batch)([dict(f) for f in features], None).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for whole, cached in zip(*gradients, strict=True):
        assert torch.allclose(whole, cached, atol=1e-5)


def two_process_run(folder: Path) -> None:
    """What each of two processes does; one process with the whole batch does the same."""
    pairs, tokenizer = (
        read_pairs([folder / "train.jsonl"]),
        AveyBTokenizer.load(folder / "vocabulary"),
    )
    name = os.environ.get("WORLD_SIZE", "1")
    train_contrastive(
        make_student(folder / f"{name}-start-{os.environ.get('RANK')}", tokenizer),
        pairs,
        TrainingRun(folder / name, DATA, device="cpu"),
        settings=replace(SETTINGS, steps=20, micro_batch=3, matryoshka=(16, 32)),
    )


@pytest.mark.slow
def test_two_processes_equal_one(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "vocabulary")
    write_jsonl(tmp_path / "train.jsonl", TRIPLETS)
    two_process_run(tmp_path)
    in_two_processes(two_process_run, tmp_path)
    same_to(1e-5, tmp_path / "1" / "model", tmp_path / "2" / "model")


def test_answers_of_the_same_question_are_no_negatives(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    """Two questions with two answers each, two rows with one answer: only the other question's
    texts count.
    """
    import torch

    rows = [
        {"query": "Q one", "positive": "a", "negative": "x"},
        {"query": "q  one", "positive": "b", "negative": "y"},
        {"query": "q two", "positive": "A ", "negative": "b"},
        {"query": "q three", "positive": "a", "negative": "z"},
    ]
    labels = torch.tensor(duplicate_labels(read_pairs([write_jsonl(tmp_path / "a.jsonl", rows)])))
    hidden = false_negatives(labels, torch.arange(4)).int().tolist()
    assert hidden == [  # positives a b A a, negatives x y b z
        [0, 1, 1, 1, 0, 0, 1, 0],
        [1, 0, 1, 1, 0, 0, 1, 0],
        [1, 0, 0, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0, 0],
    ]
    model = make_student(tmp_path / "m", tokenizer)
    same = [model.preprocess([text] * 4) for text in ("which river?", "the river")]
    for micro_batch in (1, 4):
        loss = ranking_loss(model, micro_batch=micro_batch)
        # never learned
        assert loss([dict(f) for f in same], None).item() == pytest.approx(np.log(4), abs=1e-5)
        assert loss([dict(f) for f in same], torch.tensor([[0, 1]] * 4)).item() == pytest.approx(
            0, abs=1e-6
        )


def test_masked_and_plain_loss_agree_where_nothing_is_equal(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    model = make_student(tmp_path / "m", tokenizer)
    features = [
        model.preprocess([t[side] for t in TRIPLETS[:6]])
        for side in ("query", "positive", "negative")
    ]
    apart = torch.arange(18).view(6, 3)
    for dimensions in ((), (8, 32)):
        loss = ranking_loss(model, micro_batch=4, dimensions=dimensions)
        plain, masked = (loss([dict(f) for f in features], labels) for labels in (None, apart))
        assert torch.allclose(plain, masked, atol=1e-6)


def test_duplicates_are_masked_in_a_run_unless_they_are_kept(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    rows = [{"query": "which river?", "positive": text} for text in SENTENCES[:8]]
    pairs = read_pairs([write_jsonl(tmp_path / "a.jsonl", rows)])
    for choice in ("mask", "keep"):
        settings = replace(SETTINGS, steps=1, duplicates=choice)
        model = make_student(tmp_path / f"{choice}-start", tokenizer)
        train_contrastive(
            model, pairs, TrainingRun(tmp_path / choice, DATA, device="cpu"), settings=settings
        )
        loss = read_metrics(tmp_path / choice / "metrics.jsonl")[0]["loss"]
        assert loss == pytest.approx(0, abs=1e-6) if choice == "mask" else loss > 1


def test_long_texts_are_cut_while_training_and_told(
    tokenizer, tmp_path: Path, caplog, monkeypatch
) -> None:
    rows = [{"query": f"q {i}", "positive": " ".join(SENTENCES[i : i + 3])} for i in range(8)]
    model = make_student(tmp_path / "start", tokenizer)
    pairs = read_pairs([write_jsonl(tmp_path / "a.jsonl", rows)])
    batches = record_calls(monkeypatch, AveyBModel, "encode_batch")
    settings = replace(SETTINGS, steps=1, max_tokens=7)
    train_contrastive(
        model,
        pairs,
        TrainingRun(tmp_path / "run", DATA, device="cpu"),
        settings=settings,
        tokenizer=tokenizer,
    )
    assert max(call["input_ids"].shape[1] for call in batches) == 7
    assert "8 texts are longer than 7 tokens: cut while training" in caplog.text
    assert "| texts cut | 8.0000 |" in (tmp_path / "run" / "README.md").read_text()
    # the model itself reads all
    assert Embedder.load(tmp_path / "run" / "model").max_tokens is None


def test_a_step_that_would_not_fit_is_refused_before_it_starts(
    tokenizer, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(trainer, "free_bytes", lambda device: 1 << 16)
    pairs = read_pairs([write_jsonl(tmp_path / "a.jsonl", TRIPLETS)])
    with pytest.raises(
        ConfigError,
        match=r"8 texts are read at once, .* need about .* GiB of memory, and 0.0 GiB are",
    ):
        train_contrastive(
            make_student(tmp_path / "start", tokenizer),
            pairs,
            TrainingRun(tmp_path / "run", DATA, device="cpu"),
            settings=SETTINGS,
        )
    assert not (tmp_path / "run" / "model").exists()


def test_matryoshka_learns_cut_vectors(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    model = make_student(tmp_path, tokenizer)
    features = [model.preprocess([t[side] for t in TRIPLETS[:8]]) for side in ("query", "positive")]
    plain = ranking_loss(model, micro_batch=8)(features, None)
    cut = ranking_loss(model, micro_batch=8, dimensions=[8, 32])(features, None)
    assert not torch.isclose(plain, cut)
    with pytest.raises(ConfigError, match="between 1 and the model's 32"):
        ranking_loss(model, micro_batch=8, dimensions=[64])


@pytest.mark.parametrize(
    ("record", "columns"),
    [
        ({"query": "a", "positive": "b", "negative": "c"}, ["anchor", "positive", "negative"]),
        ({"anchor": "a", "positive": "b"}, ["anchor", "positive"]),
        ({"question": "a", "answer": "b", "id": 3}, ["anchor", "positive"]),
    ],
)
def test_names_of_sides(tmp_path: Path, record: dict, columns: list[str]) -> None:
    rows = read_pairs([write_jsonl(tmp_path / "a.jsonl", [record])])
    assert rows.column_names == columns
    assert list(rows[0].values()) == ["a", "b", "c"][: len(columns)]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "no pairs"),
        ([{"query": "a"}], "line 1: no field positive"),
        (
            [{"query": "a", "positive": "b"}, {"query": "a"}],
            "line 2: field 'positive' must be a text, it is None",
        ),
        ([{"query": "a", "positive": " "}], "line 1: field 'positive'"),
        ([{"query": ["a"], "positive": "b"}], "line 1: field 'query'"),
        *(
            (
                [{"query": "q", "positive": "a", "negative": "b"}, second],
                "a.jsonl, line 2: the negative .* is a positive of the question",
            )
            for second in (
                {"query": "q", "positive": "c", "negative": "C\n"},
                {"query": " Q", "positive": "c", "negative": "a"},
            )
        ),
    ],
)
def test_pairs_that_cannot_be_learned_are_refused(
    tmp_path: Path, records: list[dict], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        read_pairs([write_jsonl(tmp_path / "a.jsonl", records)])


def test_fields_named_by_the_user_and_a_limit_on_rows(tmp_path: Path) -> None:
    records = [{"q": f"q{i}", "query": "no", "hit": f"h{i}", "miss": f"m{i}"} for i in range(3)]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    rows = read_pairs(
        [path], columns={"anchor": "q", "positive": "hit", "negative": "miss"}, rows=2
    )
    assert list(rows) == [
        {"anchor": f"q{i}", "positive": f"h{i}", "negative": f"m{i}"} for i in range(2)
    ]
    with pytest.raises(
        InputError, match=r"a.jsonl, line 1: no field bad; the line has hit, miss, q"
    ):
        read_pairs([path], columns={"positive": "hit", "negative": "bad"})


def test_less_than_a_batch(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    pairs = read_pairs([write_jsonl(tmp_path / "a.jsonl", TRIPLETS[:3])])
    with pytest.raises(InputError, match="has 3 rows, less than one batch of 8"):
        train_contrastive(
            make_student(tmp_path / "m", tokenizer),
            pairs,
            TrainingRun(tmp_path / "run", DATA),
            settings=SETTINGS,
        )
