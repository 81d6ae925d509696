"""`aveyb-train mine`, `contrastive`, `distill`, `funnel` and `export`: models that retrieve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import progress_bar
from aveyb_retrieval.cli.settings import settings_options
from aveyb_retrieval.cli.train_options import (
    FILE,
    PAIRS,
    PATH,
    RUN,
    TEXT_FIELD,
    THREADS,
    PairSource,
    Run,
    fingerprints,
    set_threads,
)
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.settings import ContrastiveSettings, DistillSettings, MiningRules

if TYPE_CHECKING:
    from pathlib import Path


def mining_rules(no_margin: bool, relative_margin: float | None, **rules: Any) -> MiningRules:
    """Make the rules; `--no-margin` drops the default margin."""
    return MiningRules(relative_margin=None if no_margin else relative_margin, **rules)


NO_MARGIN = click.option(
    "--no-margin", is_flag=True, help="Ignore --relative-margin, for a model that is not trained yet."
)


@click.command()
@PAIRS
@click.option("-o", "--out", required=True, type=FILE, help="File of triplets to write (.jsonl), for `contrastive`.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--model", help="Model folder or name.  [default: the embedded one]")
@click.option("--corpus", multiple=True, type=FILE, help="Additional texts that may become negatives. Repeatable.")
@TEXT_FIELD
@click.option(
    "--mode",
    type=click.Choice(["dense", "lexical", "hybrid"]),
    default="dense",
    help="Propose negatives by vectors, by words (BM25), or by both.",
)
@settings_options("rules", MiningRules(), NO_MARGIN, make=mining_rules)
@click.option("--device", default="cpu", help="Device of the model.")
@THREADS
@click.option("--quiet", is_flag=True, help="Show no progress.")
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
    """Find hard negatives for pairs from FILES (JSON lines) or a hub data set: texts that search ranks near the query.

    The positives of all pairs and the texts of --corpus are indexed, and every query searches them. Its own positives
    are skipped, and so are texts that score nearly as high. A query with fewer negatives than asked for keeps those it
    has; a query without any gets no row. The number of both is printed at the end.
    """
    from aveyb_retrieval.training.mining import mine_negatives
    from aveyb_retrieval.training.texts import read_texts

    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: triplets are written as JSON lines; give a name that ends in .jsonl")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists: add --overwrite to replace it, or choose another name")
    set_threads(threads)
    rules.check()  # before anything is read
    pairs, _ = source.open()
    texts = read_texts(corpus, field=field)
    with progress_bar(not quiet) as progress:
        mined = mine_negatives(pairs, rules, corpus=texts, progress=progress, **options)
    mined.save(out)
    click.echo(f"{len(mined.triplets):,} triplets in {out}, from {mined.anchors:,} queries and {mined.texts:,} texts")
    for what, queries in (
        (f"queries with fewer than {rules.negatives} negatives", mined.short),
        ("queries without a negative, left out", mined.left_out),
    ):
        if queries:
            click.echo(f"{what}: {len(queries):,}; the first: {queries[0]!r}", err=True)


@click.command()
@PAIRS
@click.option("--negative", help="Field of a hard negative.  [default: negative or neg, where the first row has one]")
@click.option("--model", required=True, help="Model folder, sentence-transformers or plain encoder.")
@click.option("--query-prompt", help="Prefix of queries.  [default: the model's own]")
@click.option("--document-prompt", help="Prefix of documents.  [default: the model's own]")
@settings_options("settings", ContrastiveSettings())
@RUN
def contrastive(
    source: PairSource,
    negative: str | None,
    model: str,
    query_prompt: str | None,
    document_prompt: str | None,
    settings: ContrastiveSettings,
    run: Run,
) -> None:
    """Fine-tune on pairs or triplets from FILES (JSON lines: query, positive, optionally negative) or the hub."""
    from aveyb_retrieval.training.contrastive import train_contrastive
    from aveyb_retrieval.training.loading import sentence_model

    options = run.prepare()
    pairs, data = source.open(negative=negative)
    prompts = {"query": query_prompt, "document": document_prompt}
    given = {name: text for name, text in prompts.items() if text is not None}
    student, vocabulary = sentence_model(model, run.out / "start", given)
    train_contrastive(
        student, pairs, run.out, tokenizer=vocabulary, data=data | {"model": model}, settings=settings, **options
    )
    run.report()


@click.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--model", required=True, help="Student: model folder, sentence-transformers or plain encoder.")
@click.option("--teacher", required=True, help="sentence-transformers model to learn from.")
@TEXT_FIELD
@settings_options("settings", DistillSettings())
@RUN
def distill(files: tuple[Path, ...], model: str, teacher: str, field: str, settings: DistillSettings, run: Run) -> None:
    """Distill a teacher's vectors and scores of the texts in FILES into a student; both are cached in OUT."""
    from aveyb_retrieval.training.distill import train_distill
    from aveyb_retrieval.training.loading import sentence_model
    from aveyb_retrieval.training.texts import read_texts

    options = run.prepare()
    student, vocabulary = sentence_model(model, run.out / "start", {})
    train_distill(
        student,
        list(read_texts(files, field=field)),
        teacher,
        run.out,
        tokenizer=vocabulary,
        data=fingerprints(files) | {"model": model, "teacher": teacher},
        settings=settings,
        **options,
    )
    run.report()


@click.command()
@click.argument("model", required=False)
@click.option("-o", "--out", required=True, type=PATH, help="Folder to write the model to; it must not exist.")
@click.option("--after", type=int, required=True, metavar="N", help="Layers that see every token.")
@click.option("--factor", type=int, default=2, help="Neighbouring tokens that become one row.")
@click.option("--pool", default="mean", help="How they become one: mean or max.")
@click.option(
    "--recovery",
    default="average_last",
    help="What tells the tokens of a row apart in outputs of single tokens: sum_first, sum_last, sum_max, sum_mean, "
    "average_last or max_last.",
)
def funnel(model: str | None, out: Path, after: int, factor: int, pool: str, recovery: str) -> None:
    """Put a funnel into MODEL (the embedded one where none is named) without training, to encode documents faster.

    The weights stay as they are. Documents of the new model are pooled behind the first layers, queries are not; an
    index belongs to one of the two models.
    """
    from aveyb_retrieval.training.funnel import add_funnel

    add_funnel(model, out, after=after, factor=factor, pool=pool, recovery=recovery)
    click.echo(f"model in {out}")


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "--precision",
    type=click.Choice(["int8", "float32"]),
    default="int8",
    help="int8 is what a CPU then uses by default; float32 is for programs in other languages.",
)
def export(model: Path, precision: str) -> None:
    """Write the ONNX form of MODEL, a folder, into it.

    Searches on a CPU use the int8 form where it lies beside the weights, without torch.
    """
    from aveyb_retrieval.encoder.onnx.export import export_onnx

    path = export_onnx(model, precision=precision)
    click.echo(f"{path}: {path.stat().st_size:,} bytes")
