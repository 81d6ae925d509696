"""`aveyb-train`: vocabulary, pre-training, mining, fine-tuning, distillation, heads, export.

All logic is in `training`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from aveyb_retrieval.cli import common
from aveyb_retrieval.cli.help import HelpfulCommand, examples
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.settings import (
    OBJECTIVES,
    AnswerSettings,
    ClassifySettings,
    ContrastiveSettings,
    DistillSettings,
    MiningRules,
    MLMSettings,
    TaskSettings,
    described,
    recipe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from datasets import Dataset

    from aveyb_retrieval.training.run_folder import TrainingRun
    from aveyb_retrieval.training.tasks import Task

FILE = click.Path(path_type=Path, dir_okay=False)
TEXT_FIELD = click.option("--field", default="text", help="Field of a JSON line with the text.")


def fingerprints(files: tuple[Path, ...]) -> dict[str, Any]:
    """Return the fingerprint of each file by its place: names may be the same in two folders."""
    from aveyb_retrieval.training.texts import fingerprint

    return {f"file {number}": fingerprint(path) for number, path in enumerate(files, start=1)}


@dataclass(frozen=True)
class PairSource:
    """Files of pairs or triplets, and the names of their fields."""

    files: tuple[Path, ...]
    rows: int | None
    anchor: str | None
    positive: str | None

    def open(self, **columns: str | None) -> tuple[Dataset, dict[str, Any]]:
        """Read the pairs, also further sides by their fields; return them and what a run folder
        records of them.
        """
        from aveyb_retrieval.training.contrastive import read_pairs

        named: Mapping[str, str | None] = {
            "anchor": self.anchor,
            "positive": self.positive,
            **columns,
        }
        fields = {side: field for side, field in named.items() if field is not None}
        pairs = read_pairs(self.files, columns=fields, rows=self.rows)
        return pairs, fingerprints(self.files) | {"rows": self.rows, "columns": fields or None}


@dataclass(frozen=True)
class RunOptions:
    """A run folder, and where and how its run computes."""

    out: Path
    resume: bool
    device: str
    threads: int | None

    def start(self, data: dict[str, Any]) -> TrainingRun:
        """Limit torch's threads; return the run of inputs with these fingerprints."""
        from aveyb_retrieval.training.run_folder import TrainingRun

        set_threads(self.threads)
        device = None if self.device == "auto" else self.device
        return TrainingRun(self.out, data, self.resume, device)

    def report(self, figures: Mapping[str, float] | None = None) -> None:
        """Print where the model is; after Ctrl-C, how to continue (exit code 130, as shells use for
        an interrupt).
        """
        from aveyb_retrieval.training.run_folder import MODEL

        if os.environ.get("RANK", "0") != "0":  # under torchrun the first process speaks for all
            return
        for name, value in (figures or {}).items():
            click.echo(
                f"{name}: {value:.0f}" if name.endswith("_cut") else f"held out {name}: {value:.4f}"
            )
        if not (self.out / MODEL).is_dir():
            click.echo(
                f"interrupted: the run in {self.out} is saved, add --resume to continue it",
                err=True,
            )
            raise SystemExit(130)
        click.echo(f"model in {self.out / MODEL}")


THREADS = click.option(
    "--threads", type=click.IntRange(1, 4096), help="CPU threads.  [default: torch's choice]"
)
RUN = common.gather(
    "run",
    RunOptions,
    click.option(
        "-o",
        "--out",
        required=True,
        type=common.PATH,
        help="Run folder: model, metrics, checkpoints.",
    ),
    click.option("--resume", is_flag=True, help="Continue the run in the run folder."),
    common.choose("--device", "auto cpu", "auto: a GPU if there is one."),
    THREADS,
)
PAIRS = common.gather(
    "source",
    PairSource,
    click.argument("files", nargs=-1, required=True, type=FILE),
    common.number("--rows", "Read at most N rows.  [default: all]"),
    click.option("--anchor", help="Field of the query.  [default: anchor, query or question]"),
    click.option(
        "--positive",
        help="Field of its answer.  [default: positive, document, passage, answer or pos]",
    ),
)


def read_fields(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """Read FIELD=VALUE: values are JSON, or else words."""
    fields: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not FIELD=VALUE")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


FIELDS = common.repeatable(
    "--set",
    "fields",
    "Set a field of a new model's configuration, such as mix_activation=none.",
    callback=read_fields,
    metavar="FIELD=VALUE",
)
TEXTS = common.together(
    click.argument("files", nargs=-1, required=True, type=FILE),
    common.number("--documents", "Read at most N documents.  [default: all]"),
    TEXT_FIELD,
    click.option(
        "--vocabulary",
        help="Folder of a vocabulary, or p50k_base.  [default: --model's, or the embedded model's]",
    ),
    click.option(
        "--model", help="Model folder to continue from.  [default: a new model of --preset]"
    ),
)


def set_threads(threads: int | None) -> None:
    """Limit torch's threads, if a number is given."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


@click.command(
    cls=HelpfulCommand, epilog=examples("aveyb-train tokenizer texts.jsonl -o vocabulary")
)
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option(
    "-o",
    "--out",
    required=True,
    type=common.PATH,
    help="Folder to write vocab.tiktoken and tokenizer.json to.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(262, 1 << 24),
    default=16384,
    help="Size of the vocabulary, special tokens included.",
)
@TEXT_FIELD
@click.option("--overwrite", is_flag=True, help="Replace an existing vocabulary.")
def tokenizer(
    files: tuple[Path, ...], out: Path, vocab_size: int, field: str, overwrite: bool
) -> None:
    """Learn a byte-level BPE vocabulary from FILES (.jsonl, .jsonl.gz, .jsonl.zst, .txt)."""
    from aveyb_retrieval.encoder.text.tokenizer import VOCAB_FILE
    from aveyb_retrieval.training.texts import read_texts, train_vocabulary

    if (out / VOCAB_FILE).exists() and not overwrite:
        raise ConfigError(
            f"{out / VOCAB_FILE} exists: add --overwrite to replace it, or choose another folder"
        )
    texts = read_texts(files, field=field)
    vocabulary = train_vocabulary(texts, vocab_size, name=out.name or "aveyb")
    vocabulary.save(out)
    click.echo(f"{vocabulary.vocab_size:,} tokens in {out}")


@click.command(
    cls=HelpfulCommand, epilog=examples("aveyb-train mlm texts.jsonl -o pretrained --preset mini")
)
@TEXTS
@common.choose(
    "--objective",
    " ".join(OBJECTIVES),
    "masked: predict masked tokens, by Avey-B; causal: the next token, by Avey.",
)
@common.choose(
    "--preset",
    "mini paper-base paper-large released-base avey-small avey-medium avey-large",
    "Shape of a new model: of Avey-B, or of Avey (mini and avey-...).",
)
@FIELDS
@common.settings_options("settings", MLMSettings())
@RUN
def mlm(
    settings: MLMSettings,
    model: str | None,
    objective: str,
    preset: str,
    files: tuple[Path, ...],
    documents: int | None,
    field: str,
    vocabulary: str | None,
    fields: dict[str, Any],
    run: RunOptions,
) -> dict[str, float]:
    """Pre-training on FILES, with the paper's recipe as defaults.

    Masked, that is 180 billion tokens, 512K of them a step, at a learning rate of 5e-4 (2.5e-4 for
    paper-large). Causal, it is 100 billion tokens in sequences of 512, 512K of them a step, from
    1e-3 to a tenth of it without a warm-up; for mini, 2,000 steps of 8 sequences of 256.
    """
    from aveyb_retrieval.training.pretraining import open_vocabulary, pretrain, starting_model
    from aveyb_retrieval.training.texts import read_texts

    source = click.get_current_context().get_parameter_source
    explicit = {
        name: getattr(settings, name)
        for name in described(MLMSettings)
        if source(name) is not ParameterSource.DEFAULT
    }
    if objective == "causal" and "mask_rate" in explicit:
        raise ConfigError("--mask-rate is for --objective masked: nothing else is masked")
    chosen = replace(recipe(objective, preset if model is None else None), **explicit)
    words = open_vocabulary(vocabulary, model)
    started = run.start(fingerprints(files) | {"documents": documents})
    texts = islice(read_texts(files, field=field), documents)
    made = starting_model(
        model, preset, words, seed=chosen.seed, fields=fields, objective=objective
    )
    figures = pretrain(made, words, texts, started, settings=chosen)
    run.report(figures)
    return figures


def mining_rules(no_margin: bool, relative_margin: float | None, **rules: Any) -> MiningRules:
    """Make the rules; `--no-margin` drops the default margin."""
    return MiningRules(relative_margin=None if no_margin else relative_margin, **rules)


@click.command(
    cls=HelpfulCommand,
    epilog=examples("aveyb-train mine pairs.jsonl --model my-model -o triplets.jsonl"),
)
@PAIRS
@click.option(
    "-o",
    "--out",
    required=True,
    type=FILE,
    help="File of triplets to write (.jsonl), for `contrastive`.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--model", help="Model folder or name.  [default: the embedded one]")
@common.repeatable("--corpus", "corpus", "Additional texts that may become negatives.", type=FILE)
@TEXT_FIELD
@common.choose(
    "--mode", "dense lexical hybrid", "Propose negatives by vectors, by words (BM25), or by both."
)
@common.settings_options(
    "rules",
    MiningRules(),
    click.option(
        "--no-margin",
        is_flag=True,
        help="Ignore --relative-margin, for a model that is not trained yet.",
    ),
    make=mining_rules,
)
@click.option("--device", default="cpu", help="Device of the model.")
@THREADS
@common.QUIET
def mine(
    source: PairSource,
    out: Path,
    overwrite: bool,
    corpus: tuple[Path, ...],
    field: str,
    rules: MiningRules,
    threads: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Find hard negatives for pairs from FILES (JSON lines): texts that search ranks near the
    query.

    The positives of all pairs and the texts of --corpus are indexed, and every query searches them.
    Its own positives are skipped, and so are texts that score nearly as high. A query with fewer
    negatives than asked for keeps those it has; a query without any gets no row. The number of both
    is printed at the end.
    """
    from aveyb_retrieval.training.contrastive import mine_negatives
    from aveyb_retrieval.training.texts import read_texts

    if out.suffix != ".jsonl":
        raise ConfigError(
            f"{out}: triplets are written as JSON lines; give a name that ends in .jsonl"
        )
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists: add --overwrite to replace it, or choose another name")
    set_threads(threads)
    rules.check()  # before anything is read
    pairs, _ = source.open()
    texts = read_texts(corpus, field=field)
    with common.progress_bar(not quiet) as progress:
        mined = mine_negatives(pairs, rules, corpus=texts, progress=progress, **options)
    mined.save(out)
    click.echo(
        f"{len(mined.triplets):,} triplets in {out}, from {mined.anchors:,} queries and"
        f" {mined.texts:,} texts"
    )
    for what, queries in (
        (f"queries with fewer than {rules.negatives} negatives", mined.short),
        ("queries without a negative, left out", mined.left_out),
    ):
        if queries:
            click.echo(f"{what}: {len(queries):,}; the first: {queries[0]!r}", err=True)


@click.command(
    cls=HelpfulCommand,
    epilog=examples("aveyb-train contrastive pairs.jsonl --model my-model -o fine-tuned"),
)
@PAIRS
@click.option(
    "--negative",
    help="Field of a hard negative.  [default: negative or neg, if the first row has one]",
)
@click.option(
    "--model", required=True, help="Model folder, sentence-transformers or plain encoder."
)
@click.option("--query-prompt", help="Prefix of queries.  [default: the model's own]")
@click.option("--document-prompt", help="Prefix of documents.  [default: the model's own]")
@common.settings_options("settings", ContrastiveSettings())
@RUN
def contrastive(
    source: PairSource,
    negative: str | None,
    model: str,
    query_prompt: str | None,
    document_prompt: str | None,
    settings: ContrastiveSettings,
    run: RunOptions,
) -> None:
    """Fine-tune on pairs or triplets from FILES (JSON lines: query, positive,
    optionally negative).
    """
    from aveyb_retrieval.training.contrastive import train_contrastive
    from aveyb_retrieval.training.sentence_trainer import sentence_model

    pairs, data = source.open(negative=negative)
    started = run.start(data | {"model": model})
    prompts = {"query": query_prompt, "document": document_prompt}
    set_prompts = {name: text for name, text in prompts.items() if text is not None}
    student, vocabulary = sentence_model(model, run.out / "start", set_prompts)
    train_contrastive(
        student,
        pairs,
        started,
        tokenizer=vocabulary,
        settings=settings,
    )
    run.report()


@click.command(
    cls=HelpfulCommand,
    epilog=examples("aveyb-train distill texts.jsonl --model my-model --teacher minilm -o student"),
)
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option(
    "--model", required=True, help="Student: model folder, sentence-transformers or plain encoder."
)
@common.repeatable(
    "--teacher", "teachers", "sentence-transformers model to learn from.", required=True
)
@click.option(
    "--teacher-prompts",
    "prompts",
    nargs=2,
    multiple=True,
    metavar="QUERY DOCUMENT",
    help=(
        "Prompts of a teacher for queries and documents; once per --teacher, in order. "
        " [default: its own]"
    ),
)
@common.repeatable("--queries", "queries", "File of questions to learn.", type=FILE)
@TEXT_FIELD
@common.settings_options("settings", DistillSettings())
@RUN
def distill(
    files: tuple[Path, ...],
    model: str,
    teachers: tuple[str, ...],
    prompts: tuple[tuple[str, str], ...],
    queries: tuple[Path, ...],
    field: str,
    settings: DistillSettings,
    run: RunOptions,
) -> None:
    """Distill the vectors and scores of one or more teachers into a student; they are cached in
    OUT.

    FILES hold the texts. Several teachers are joined: the mean of each one's vectors is
    subtracted, then they are concatenated and rotated to the student's width.
    """
    from aveyb_retrieval.training.distill import train_distill
    from aveyb_retrieval.training.sentence_trainer import sentence_model
    from aveyb_retrieval.training.teacher import Teacher
    from aveyb_retrieval.training.texts import read_texts

    if prompts and len(prompts) != len(teachers):
        raise click.UsageError(
            f"--teacher-prompts is given {len(prompts)} times for {len(teachers)} --teacher"
        )
    several = [Teacher(teacher, prompt) for teacher, prompt in zip_longest(teachers, prompts)]
    alone = len(teachers) == 1 and not prompts
    data = fingerprints(files) | {
        "model": model,
        "teacher": teachers[0] if alone else list(map(asdict, several)),
    }
    started = run.start(data | ({"queries": fingerprints(queries)} if queries else {}))
    student, vocabulary = sentence_model(model, run.out / "start", {})
    train_distill(
        student,
        list(read_texts(files, field=field)),
        teachers[0] if alone else several,
        started,
        tokenizer=vocabulary,
        queries=list(read_texts(queries, field=field)),
        settings=settings,
    )
    run.report()


@click.command(cls=HelpfulCommand, epilog=examples("aveyb-train export my-model"))
@click.argument("model", type=common.PATH)
@common.choose(
    "--precision",
    "int8 float32",
    "int8 is what a CPU then uses by default; float32 is for programs in other languages.",
)
def export(model: Path, precision: str) -> None:
    """Write the ONNX form of MODEL, a folder, into it.

    Searches on a CPU use the int8 form if it is next to the weights, without torch.
    """
    from aveyb_retrieval.encoder.onnx.export import export_onnx

    path = export_onnx(model, precision=precision)
    click.echo(f"{path}: {path.stat().st_size:,} bytes")


LABELED = common.together(
    click.argument("files", nargs=-1, required=True, type=FILE),
    click.option(
        "--model",
        help="Model folder, an encoder or a head to go on with.  [default: the embedded encoder]",
    ),
    common.repeatable("--validation", "validation", "Rows to validate with.", type=FILE),
)


@click.command(
    cls=HelpfulCommand,
    epilog=examples("aveyb-train classify labels.jsonl --model my-model -o classifier"),
)
@LABELED
@common.settings_options("settings", ClassifySettings())
@RUN
def classify(**arguments: Any) -> dict[str, float]:
    """Train labels of texts or pairs from FILES (JSON lines: text, optionally text_pair, label).

    With --loss bce or mse there is one label, a number: a cross-encoder, which `rerank=` and
    sentence-transformers' CrossEncoder open.
    """
    from aveyb_retrieval.training.tasks import classification

    return _train_head(classification, **arguments)


@click.command(
    cls=HelpfulCommand, epilog=examples("aveyb-train tag words.jsonl --model my-model -o tagger")
)
@LABELED
@common.settings_options("settings", TaskSettings())
@RUN
def tag(**arguments: Any) -> dict[str, float]:
    """Train tags of words (entities, parts of speech) from FILES (JSON lines: words and tags, two
    lists).
    """
    from aveyb_retrieval.training.tasks import tagging

    return _train_head(tagging, **arguments)


@click.command(
    cls=HelpfulCommand,
    epilog=examples("aveyb-train answer questions.jsonl --model my-model -o reader"),
)
@LABELED
@common.settings_options("settings", AnswerSettings())
@RUN
def answer(**arguments: Any) -> dict[str, float]:
    """Train answers to questions from FILES (JSON lines: question, context, answers).

    An answer has a text and its first character in the context, start; no answers: [].
    """
    from aveyb_retrieval.training.answers import answering

    return _train_head(answering, **arguments)


def _train_head(
    prepare: Callable[..., Task],
    files: tuple[Path, ...],
    model: str | None,
    validation: tuple[Path, ...],
    settings: TaskSettings,
    run: RunOptions,
) -> dict[str, float]:
    import torch

    from aveyb_retrieval.training.tasks import train_task

    held_out = {f"validation {name}": value for name, value in fingerprints(validation).items()}
    started = run.start(fingerprints(files) | held_out | {"model": model})
    torch.manual_seed(settings.seed)  # the head's start
    task = prepare(files, validation, model, settings)
    figures = train_task(task, started, settings=settings)
    run.report(figures)
    return figures


@click.group(cls=common.Commands, context_settings=common.CONTEXT)
@click.version_option(package_name="aveyb-retrieval")
def main() -> None:
    """Train vocabularies and models: tokenizer, mlm, mine, contrastive, distill, classify, tag,
    answer.

    export makes a trained model faster.
    """


for command in (tokenizer, mlm, mine, contrastive, distill, classify, tag, answer, export):
    main.add_command(command)


if __name__ == "__main__":
    main()
