"""`aveyb-train tokenizer`, `mlm` and `clm`: a vocabulary, and a model that has only read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from aveyb_retrieval.cli.settings import settings_options
from aveyb_retrieval.cli.train_options import FIELDS, FILE, PATH, RUN, TEXT_FIELD, TEXTS, Run, TextSource
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.settings import MLM_RATES, CLMSettings, MLMSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedModel


@click.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("-o", "--out", required=True, type=PATH, help="Folder to write vocab.tiktoken and tokenizer.json to.")
@click.option("--vocab-size", default=16384, help="Size of the vocabulary, special tokens included.")
@TEXT_FIELD
@click.option(
    "--capitals",
    type=click.Choice(["bytes", "marks"]),
    default="bytes",
    help="marks: write a capital as a mark and the lower-case letter, so that both spellings share tokens.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing vocabulary.")
def tokenizer(files: tuple[Path, ...], out: Path, vocab_size: int, field: str, capitals: str, overwrite: bool) -> None:
    """Learn a byte-level BPE vocabulary from FILES (.jsonl, .jsonl.gz, .jsonl.zst, .txt)."""
    from aveyb_retrieval.encoder.text.tokenizer import VOCAB_FILE
    from aveyb_retrieval.training.texts import read_texts
    from aveyb_retrieval.training.vocabulary import train_vocabulary

    if (out / VOCAB_FILE).exists() and not overwrite:
        raise ConfigError(f"{out / VOCAB_FILE} exists: add --overwrite to replace it, or choose another folder")
    texts = read_texts(files, field=field)
    vocabulary = train_vocabulary(texts, vocab_size, capitals=capitals, name=out.name or "aveyb")
    vocabulary.save(out)
    click.echo(f"{vocabulary.vocab_size:,} tokens in {out}")


@click.command()
@TEXTS
@click.option(
    "--preset",
    type=click.Choice(["mini", "paper-base", "paper-large", "released-base"]),
    default="mini",
    help="Shape of a new model.",
)
@FIELDS
@settings_options("settings", MLMSettings())
@RUN
def mlm(settings: MLMSettings, model: str | None, preset: str, **arguments: Any) -> dict[str, float]:
    """Masked-language modeling on FILES or a hub data set, with the paper's recipe as defaults.

    That is 180 billion tokens, 512K of them a step, at a learning rate of 5e-4 (2.5e-4 for paper-large).
    """
    from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM
    from aveyb_retrieval.training.loading import starting_model

    if preset in MLM_RATES and model is None and not _is_given("learning_rate"):
        settings = replace(settings, learning_rate=MLM_RATES[preset])
    return _pretrain(partial(starting_model, AveyBForMaskedLM, model, preset), "held out {}", settings, **arguments)


@click.command()
@TEXTS
@click.option(
    "--preset",
    type=click.Choice(["mini", "small", "medium", "large"]),
    default="mini",
    help="Shape of a new model; small, medium and large are the paper's.",
)
@FIELDS
@settings_options("settings", CLMSettings())
@RUN
def clm(settings: CLMSettings, model: str | None, preset: str, **arguments: Any) -> dict[str, float]:
    """Next-token training of Avey, the causal language model, on FILES or a hub data set."""
    from aveyb_retrieval.training.loading import causal_model

    return _pretrain(partial(causal_model, model, preset), "held out {}, as trained", settings, **arguments)


def _pretrain(
    make_model: Callable[..., PreTrainedModel],
    measured: str,
    settings: MLMSettings | CLMSettings,
    *,
    source: TextSource,
    vocabulary: str,
    fields: dict[str, Any],
    run: Run,
) -> dict[str, float]:
    """Train the model that `make_model` makes; print its figures, called as `measured` says, and return them."""
    from aveyb_retrieval.training.loading import open_vocabulary
    from aveyb_retrieval.training.pretraining import pretrain

    options = run.prepare()
    words = open_vocabulary(vocabulary)
    texts, data = source.open()
    model = make_model(words, seed=settings.seed, fields=fields)
    figures = pretrain(model, words, texts, run.out, data=data, settings=settings, **options)
    for name, value in figures.items():
        click.echo(f"{measured.format(name)}: {value:.4f}")
    run.report()
    return figures


def _is_given(parameter: str) -> bool:
    """Whether the user gave an option of the running command."""
    return click.get_current_context().get_parameter_source(parameter) is not ParameterSource.DEFAULT
