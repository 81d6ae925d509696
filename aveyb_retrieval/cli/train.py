"""`aveyb-train`: vocabulary, pre-training, mining, fine-tuning, distillation.

All logic lives in `training`.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import Commands, Decorator, progress_bar, together
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aveyb-retrieval")
def main() -> None:
    """Train vocabularies and encoders: tokenizer, mlm, mine, contrastive, distill."""


def run_options(steps: int, batch_size: int, learning_rate: float, schedule: str) -> Decorator:
    """Options of every training run, with the defaults of one objective."""
    options = [
        click.option("-o", "--out", required=True, type=PATH, help="Run folder: model, metrics, checkpoints."),
        click.option("--steps", default=steps, show_default=True, help="Optimizer steps."),
        click.option("--batch-size", default=batch_size, show_default=True, help="Rows per step, over all processes."),
        click.option("--learning-rate", default=learning_rate, show_default=True, help="Peak learning rate."),
        click.option("--schedule", type=click.Choice(["cosine", "linear", "trapezoidal", "constant"]), default=schedule,
                     show_default=True, help="Shape of the learning rate after the warm-up."),
        click.option("--optimizer", type=click.Choice(["adamw", "stable_adamw"]), default="adamw", show_default=True,
                     help="Optimizer."),
        click.option("--bf16/--fp32", default=True, show_default=True,
                     help="Precision of the matrix products: bfloat16 by autocast, or float32."),
        click.option("--seed", default=0, show_default=True, help="Seed of every random choice."),
        click.option("--save-every", default=500, show_default=True, help="Steps between checkpoints."),
        click.option("--resume", is_flag=True, help="Continue the run in the run folder."),
        click.option("--device", type=click.Choice(["auto", "cpu"]), default="auto", show_default=True,
                     help="auto: a GPU if there is one."),
        click.option("--threads", type=int, help="CPU threads.  [default: torch's choice]"),
    ]  # fmt: skip

    return together(*options)


PAIRS = together(
    click.argument("files", nargs=-1, type=FILE),
    click.option("--hub", help="Hub data set to stream, as NAME or NAME:CONFIG (sentence-transformers/gooaq)."),
    click.option("--rows", type=click.IntRange(min=1), help="Read at most N rows.  [default: all]", metavar="N"),
    click.option("--anchor", help="Field of the query.  [default: anchor, query or question]"),
    click.option("--positive", help="Field of its answer.  [default: positive, document, passage, answer or pos]"),
)


@main.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("-o", "--out", required=True, type=PATH, help="Folder to write vocab.tiktoken and tokenizer.json to.")
@click.option("--vocab-size", default=16384, show_default=True, help="Size of the vocabulary, special tokens included.")
@click.option("--field", default="text", show_default=True, help="Field of a JSON line that holds the text.")
@click.option(
    "--capitals",
    type=click.Choice(["bytes", "marks"]),
    default="bytes",
    show_default=True,
    help="marks: write a capital as a mark and the lower-case letter, so that both spellings share tokens.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing vocabulary.")
def tokenizer(files: tuple[Path, ...], out: Path, vocab_size: int, field: str, capitals: str, overwrite: bool) -> None:
    """Learn a byte-level BPE vocabulary from FILES (.jsonl, .jsonl.gz, .jsonl.zst, .txt)."""
    from aveyb_retrieval.encoder.tokenizer import VOCAB_FILE
    from aveyb_retrieval.training.texts import read_texts
    from aveyb_retrieval.training.vocabulary import train_vocabulary

    if (out / VOCAB_FILE).exists() and not overwrite:
        raise ConfigError(f"{out / VOCAB_FILE} exists: add --overwrite to replace it, or choose another folder")
    texts = read_texts(files, field=field)
    vocabulary = train_vocabulary(texts, vocab_size, capitals=capitals, name=out.name or "aveyb")
    vocabulary.save(out)
    click.echo(f"{vocabulary.vocab_size:,} tokens in {out}")


@main.command()
@click.argument("files", nargs=-1, type=FILE)
@click.option("--hub", help="Hub data set to stream, as NAME or NAME:CONFIG (HuggingFaceFW/fineweb:sample-10BT).")
@click.option("--documents", type=int, help="Read at most N documents.  [default: all]", metavar="N")
@click.option("--field", default="text", show_default=True, help="Field that holds the text.")
@click.option("--vocabulary", required=True, help="Folder of a vocabulary, or p50k_base.")
@click.option("--model", help="Model folder to continue from.  [default: a new model of --preset]")
@click.option(
    "--preset",
    type=click.Choice(["mini", "paper-base", "paper-large", "released-base"]),
    default="mini",
    show_default=True,
    help="Shape of a new model.",
)
@click.option("--length", default=2048, show_default=True, help="Tokens per packed sequence.")
@click.option(
    "--micro-batch",
    default=8,
    show_default=True,
    help="Sequences per forward pass; gradients are accumulated to a full batch.",
)
@click.option("--mask-rate", default=0.2, show_default=True, help="Share of tokens replaced by [MASK].")
@click.option("--gradient-checkpointing", is_flag=True, help="Use less memory and a third more time.")
@click.option(
    "--held-out-every", default=100, show_default=True, help="Keep every N-th document for validation.", metavar="N"
)
@click.option(
    "--evaluate-every", default=0, show_default=True, help="Steps between validations; 0 validates at the end only."
)
@run_options(steps=90_000, batch_size=256, learning_rate=5e-4, schedule="cosine")
def mlm(
    files: tuple[Path, ...],
    hub: str | None,
    documents: int | None,
    field: str,
    vocabulary: str,
    model: str | None,
    preset: str,
    out: Path,
    resume: bool,
    device: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Masked-language modelling on FILES or a hub data set, with the paper's recipe as defaults."""
    from itertools import islice

    from aveyb_retrieval.training.loading import masked_model, open_vocabulary
    from aveyb_retrieval.training.mlm import MLMSettings, train_mlm
    from aveyb_retrieval.training.texts import fingerprint, read_hub, read_texts

    one_source(files, hub)
    set_threads(threads)
    words = open_vocabulary(vocabulary)
    texts = read_hub(hub, field=field) if hub else read_texts(files, field=field)
    data: dict[str, Any] = {"hub": hub} if hub else {path.name: fingerprint(path) for path in files}
    figures = train_mlm(
        masked_model(model, preset, words, seed=options["seed"]),
        words,
        islice(texts, documents),
        out,
        data=data | {"documents": documents},
        settings=MLMSettings(**options),
        resume=resume,
        device=None if device == "auto" else device,
    )
    for name, value in figures.items():
        click.echo(f"held out {name}: {value:.4f}")
    say_end(out)


@main.command()
@PAIRS
@click.option("-o", "--out", required=True, type=FILE, help="File of triplets to write (.jsonl), for `contrastive`.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--model", help="Model folder or name.  [default: the embedded one]")
@click.option("--corpus", multiple=True, type=FILE, help="Additional texts that may become negatives. Repeatable.")
@click.option("--field", default="text", show_default=True, help="Field of --corpus that holds the text.")
@click.option(
    "--mode",
    type=click.Choice(["dense", "lexical", "hybrid"]),
    default="dense",
    show_default=True,
    help="Propose negatives by vectors, by words (BM25), or by both.",
)
@click.option("--negatives", default=1, show_default=True, help="Negatives per pair; each becomes a row of its own.")
@click.option(
    "--range-min", default=0, show_default=True, help="Skip the best N texts, positives not counted.", metavar="N"
)
@click.option("--range-max", default=50, show_default=True, help="Consider the best N texts.", metavar="N")
@click.option(
    "--relative-margin",
    default=0.05,
    show_default=True,
    help="Keep a negative only if its cosine is below the positive's by this share; closer texts may be answers.",
)
@click.option(
    "--absolute-margin",
    type=float,
    help="Keep it only if its cosine is below the positive's by this much.  [default: no limit]",
)
@click.option("--max-score", type=float, help="Keep it only if its cosine is at most this.  [default: no limit]")
@click.option("--no-margin", is_flag=True, help="Ignore --relative-margin, for a model that is not trained yet.")
@click.option("--device", default="cpu", show_default=True, help="Device of the model.")
@click.option("--threads", type=int, help="CPU threads.  [default: torch's choice]")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def mine(
    files: tuple[Path, ...],
    hub: str | None,
    rows: int | None,
    anchor: str | None,
    positive: str | None,
    out: Path,
    overwrite: bool,
    model: str | None,
    corpus: tuple[Path, ...],
    field: str,
    mode: Any,
    no_margin: bool,
    relative_margin: float,
    device: str,
    threads: int | None,
    quiet: bool,
    **rules: Any,
) -> None:
    """Find hard negatives for pairs from FILES (JSON lines) or a hub data set: texts that search ranks near the query.

    The positives of all pairs and the texts of --corpus are indexed, and every query searches them. Its own positives
    are skipped, and so are texts that score nearly as high. A query with fewer negatives than asked for keeps those it
    has; a query without any gets no row. The number of both is printed at the end.
    """
    from aveyb_retrieval.training.mining import Rules, mine_negatives
    from aveyb_retrieval.training.texts import read_texts

    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: triplets are written as JSON lines; give a name that ends in .jsonl")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists: add --overwrite to replace it, or choose another name")
    set_threads(threads)
    margin = None if no_margin else relative_margin
    chosen = Rules(relative_margin=margin, **rules)
    chosen.check()  # before anything is read
    pairs, _ = open_pairs(files, hub, rows, {"anchor": anchor, "positive": positive})
    with progress_bar(not quiet) as progress:
        mined = mine_negatives(
            pairs,
            chosen,
            model=model,
            corpus=read_texts(corpus, field=field),
            mode=mode,
            device=device,
            progress=progress,
        )
    mined.save(out)
    click.echo(f"{len(mined.triplets):,} triplets in {out}, from {mined.anchors:,} queries and {mined.texts:,} texts")
    for what, queries in (
        (f"queries with fewer than {chosen.negatives} negatives", mined.short),
        ("queries without a negative, left out", mined.left_out),
    ):
        if queries:
            click.echo(f"{what}: {len(queries):,}; the first: {queries[0]!r}", err=True)


@main.command()
@PAIRS
@click.option("--negative", help="Field of a hard negative.  [default: negative or neg, where the first row has one]")
@click.option("--model", required=True, help="Model folder, sentence-transformers or plain encoder.")
@click.option("--micro-batch", default=32, show_default=True, help="Rows per forward pass (GradCache); limits memory.")
@click.option("--scale", default=20.0, show_default=True, help="Factor applied to the cosines.")
@click.option(
    "--matryoshka",
    type=int,
    multiple=True,
    help="Also train vectors truncated to N dimensions. Repeatable.",
    metavar="N",
)
@click.option("--query-prompt", help="Prefix of queries.  [default: the model's own]")
@click.option("--document-prompt", help="Prefix of documents.  [default: the model's own]")
@run_options(steps=1000, batch_size=128, learning_rate=1e-4, schedule="linear")
def contrastive(
    files: tuple[Path, ...],
    hub: str | None,
    rows: int | None,
    anchor: str | None,
    positive: str | None,
    negative: str | None,
    model: str,
    out: Path,
    micro_batch: int,
    scale: float,
    matryoshka: tuple[int, ...],
    query_prompt: str | None,
    document_prompt: str | None,
    resume: bool,
    device: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Fine-tune on pairs or triplets from FILES (JSON lines: query, positive, optionally negative) or the hub."""
    from aveyb_retrieval.training.contrastive import PAPER, train_contrastive
    from aveyb_retrieval.training.loading import sentence_model

    set_threads(threads)
    pairs, data = open_pairs(files, hub, rows, {"anchor": anchor, "positive": positive, "negative": negative})
    prompts = {"query": query_prompt, "document": document_prompt}
    given = {name: text for name, text in prompts.items() if text is not None}
    student, vocabulary = sentence_model(model, out / "start", given)
    train_contrastive(
        student,
        pairs,
        out,
        tokenizer=vocabulary,
        data=data | {"model": model},
        settings=replace(PAPER, **_known(PAPER, options)),
        micro_batch=micro_batch,
        scale=scale,
        dimensions=matryoshka,
        resume=resume,
        device=None if device == "auto" else device,
    )
    say_end(out)


@main.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--model", required=True, help="Student: model folder, sentence-transformers or plain encoder.")
@click.option("--teacher", required=True, help="sentence-transformers model to learn from.")
@click.option("--field", default="text", show_default=True, help="Field of a JSON line that holds the text.")
@click.option("--teacher-tokens", default=256, show_default=True, help="Tokens of a text that the teacher reads.")
@click.option(
    "--vector-weight",
    default=5.0,
    show_default=True,
    help="Weight of the loss on vectors, 1 - cosine to the teacher's.",
)
@click.option(
    "--score-weight", default=1.0, show_default=True, help="Weight of the loss on the batch's score distributions."
)
@click.option("--temperature", default=0.1, show_default=True, help="Temperature of the score distributions.")
@run_options(steps=2000, batch_size=128, learning_rate=5e-4, schedule="cosine")
def distill(
    files: tuple[Path, ...],
    model: str,
    teacher: str,
    field: str,
    teacher_tokens: int,
    out: Path,
    vector_weight: float,
    score_weight: float,
    temperature: float,
    resume: bool,
    device: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Distill a teacher's vectors and scores of the texts in FILES into a student; both are cached in OUT."""
    from aveyb_retrieval.training.distill import train_distill
    from aveyb_retrieval.training.loading import sentence_model
    from aveyb_retrieval.training.sentence_trainer import SentenceSettings
    from aveyb_retrieval.training.texts import fingerprint, read_texts

    set_threads(threads)
    defaults = SentenceSettings(betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01)
    student, vocabulary = sentence_model(model, out / "start", {})
    train_distill(
        student,
        list(read_texts(files, field=field)),
        teacher,
        out,
        tokenizer=vocabulary,
        data={path.name: fingerprint(path) for path in files} | {"model": model, "teacher": teacher},
        settings=replace(defaults, **_known(defaults, options)),
        teacher_tokens=teacher_tokens,
        vector_weight=vector_weight,
        score_weight=score_weight,
        temperature=temperature,
        resume=resume,
        device=None if device == "auto" else device,
    )
    say_end(out)


def one_source(files: tuple[Path, ...], hub: str | None) -> None:
    """End the command unless there are either files or a hub data set."""
    if bool(files) == bool(hub):
        raise click.UsageError("give FILES or --hub, one of them")


def open_pairs(
    files: tuple[Path, ...], hub: str | None, rows: int | None, columns: dict[str, str | None]
) -> tuple[Dataset, dict[str, Any]]:
    """Open the pairs of files or of a hub data set; also returns their description for the run folder."""
    from aveyb_retrieval.training.contrastive import read_hub_pairs, read_pairs
    from aveyb_retrieval.training.texts import fingerprint

    one_source(files, hub)
    given = {side: field for side, field in columns.items() if field is not None}
    data: dict[str, Any] = {"hub": hub} if hub else {path.name: fingerprint(path) for path in files}
    pairs = read_hub_pairs(hub, columns=given, rows=rows) if hub else read_pairs(files, columns=given, rows=rows)
    return pairs, data | {"rows": rows, "columns": given or None}


def say_end(out: Path) -> None:
    """Print where the model is or, after Ctrl-C, how to continue (exit code 130, as shells use for an interrupt)."""
    from aveyb_retrieval.training.run_folder import MODEL

    if os.environ.get("RANK", "0") != "0":  # under torchrun the first process speaks for all
        return
    if not (out / MODEL).is_dir():
        click.echo(f"interrupted: the run in {out} is saved, add --resume to go on with it", err=True)
        raise SystemExit(130)
    click.echo(f"model in {out / MODEL}")


def set_threads(threads: int | None) -> None:
    """Limit torch to this many CPU threads, if a number is given."""
    if threads is not None:
        import torch

        if threads < 1:
            raise ConfigError(f"--threads is {threads}; it must be at least 1")
        torch.set_num_threads(threads)


def _known(settings: Any, options: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(settings)}
    return {name: value for name, value in options.items() if name in names}
