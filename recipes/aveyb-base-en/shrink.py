"""Write a model folder in the form that ships: embeddings in int8 rows, all else in float16, and
its int8 ONNX form.

    python shrink.py MODEL OUT

The ONNX form reads the embeddings from the checkpoint, so they are there once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import torch
from safetensors.torch import load_file, save_file

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.model_folders import TABLE, TABLE_SCALE
from aveyb_retrieval.encoder.network.tensors import float_table
from aveyb_retrieval.encoder.onnx.export import export_onnx
from aveyb_retrieval.encoder.onnx.graph import int8_rows
from aveyb_retrieval.encoder.onnx.model import WEIGHTS
from aveyb_retrieval.errors import ConfigError


@click.command(cls=Command)
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def main(model: Path, out: Path) -> None:
    """Write the folder OUT of the model folder MODEL."""
    if out.exists():
        raise ConfigError(f"{out} is there already: nothing was written; choose another folder")
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("onnx", WEIGHTS))
    whole = float_table(load_file(model / WEIGHTS), model / WEIGHTS)
    tensors = {name: tensor.to(torch.float16) for name, tensor in whole.items()}
    rows = int8_rows(whole[TABLE].float().numpy())
    tensors[TABLE], tensors[TABLE_SCALE] = map(torch.from_numpy, rows)
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    form = export_onnx(out)
    sizes = {path.name: path.stat().st_size for path in (out / WEIGHTS, form)}
    click.echo(
        f"{out}: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items())
    )


if __name__ == "__main__":
    main()
