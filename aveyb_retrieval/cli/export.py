"""`aveyb-train export`: the ONNX form of a model."""

from __future__ import annotations

from pathlib import Path

import click

from aveyb_retrieval.cli.common import Command


@click.command(cls=Command)
@click.argument("model", type=click.Path(path_type=Path))
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
