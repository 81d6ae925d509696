"""Train the whole model on packed texts; the same command continues a run that was stopped.

Needs torch, transformers, safetensors and numpy, and of this project its own files only. --minutes ends a call in time,
with a checkpoint. When the last step is done, `pieces.py` cuts the model into files that may travel back.
"""

from __future__ import annotations

from pathlib import Path

import click
import torch
from packed import PackedTexts, vocabulary_hash
from packed_loop import train_packed
from packed_settings import PackedSettings
from teacher_tokens import read_token_vectors

from aveyb_retrieval.cli.common import settings_options
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.errors import InputError

FOLDER = click.Path(path_type=Path, file_okay=False)


def check_vocabulary(model: Path, texts: PackedTexts) -> None:
    """Check that the texts were packed with the model's vocabulary.

    Raises:
        InputError: they were packed with another, or the model folder has none.
    """
    found = vocabulary_hash(model)
    if found != texts.facts["vocabulary"]:
        raise InputError(
            f"{model}: its vocabulary has SHA-256 {found}, the texts were packed with {texts.facts['vocabulary']}: "
            "pack them with the vocabulary of this model"
        )


@click.command()
@click.option("--packed", type=FOLDER, required=True, multiple=True, help="Output folder of pack_texts.py. Repeatable.")
@click.option("--only", multiple=True, help="Name of a part to train on, of one folder. Repeatable.  [default: all]")
@click.option("--labels", type=FOLDER, help="Folder of the teacher's vectors, for those of tokens (of one folder).")
@click.option("--model", required=True, help="Model folder to start from.")
@click.option("-o", "--out", type=FOLDER, required=True, help="Run folder.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--minutes", type=float, help="Stop after about N minutes.  [default: at the last step]")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: torch's choice]")
@settings_options("settings", PackedSettings())
def main(
    packed: tuple[Path, ...],
    only: tuple[str, ...],
    labels: Path | None,
    model: str,
    out: Path,
    device: str,
    minutes: float | None,
    threads: int | None,
    settings: PackedSettings,
) -> None:
    """Train on the parts in --packed, starting from --model or from the newest checkpoint in --out."""
    if threads is not None:
        torch.set_num_threads(threads)
    if len(packed) > 1 and (only or labels):
        raise click.UsageError("--only and --labels belong to one folder of packed texts: give --packed once")
    loaded = [PackedTexts.load(folder, only or None) for folder in packed]
    texts = loaded[0] if len(loaded) == 1 else PackedTexts.join(loaded)
    check_vocabulary(Path(model), texts)
    if labels is not None:
        texts = texts.with_tokens(read_token_vectors(labels, vocabulary=texts.facts["vocabulary"]))
    student = AveyBModel.from_pretrained(model, dtype=torch.float32)
    done = train_packed(student, texts, out, settings=settings, device=device, minutes=minutes)
    if done < settings.steps:
        click.echo(f"stopped after {done:,} of {settings.steps:,} steps; the same command continues")
    else:
        click.echo(f"model in {out / 'model'}")


if __name__ == "__main__":
    main()
