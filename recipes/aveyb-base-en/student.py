"""Write a student that has learned nothing: layers at random, embeddings of a BERT.

python student.py TEACHER OUT
"""

from __future__ import annotations

from pathlib import Path

import click
import torch
from torch import nn
from transformers import AutoModel

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.config import LOADING_ERRORS, AveyBConfig
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.wordpiece import WordPieceTokenizer
from aveyb_retrieval.errors import ConfigError, ModelError, first_line

SPLIT = 256
REACH = 4.0  # tokens over which a static matrix starts to fall to 1/e
NOISE = 0.005  # of a static matrix, so that positions do not start equal
FUSER = 0.01  # standard deviation: at the start a layer changes little


def embedding(teacher: nn.Module) -> torch.Tensor:
    """Return float32 `[V, D]`: what a BERT embeds a token as, with the mean of its positions in a
    split.
    """
    parts = teacher.embeddings
    positions = parts.position_embeddings.weight[1 : SPLIT + 1].mean(0)
    with torch.no_grad():
        rows = parts.LayerNorm(
            parts.word_embeddings.weight + parts.token_type_embeddings.weight[0] + positions
        )
    return rows.float()


def new_student(table: torch.Tensor, pairs: int = 3, seed: int = 0) -> AveyBModel:
    """Return a student of `pairs` times a static and a dynamic layer with an embedding `[V, D]`.

    Its compressor is zero: a split that retrieves others is read as one that does not.
    """
    config = AveyBConfig(
        vocab_size=len(table),
        hidden_size=table.shape[1],
        num_hidden_layers=2 * pairs,
        split_size=SPLIT,
        expansion_factor=4,
        final_norm=False,
        norm_eps=1e-6,
        similarity_eps=1e-6,
        static_init="local",
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    model = AveyBModel(config)
    place = torch.arange(SPLIT)
    near = torch.exp(-(place[:, None] - place).abs() / REACH)
    with torch.no_grad():
        model.embed.weight.copy_(table)
        model.ranker.down_proj.zero_()
        for layer in model.layers:
            nn.init.kaiming_uniform_(layer.enricher.weight, a=5**0.5)
            nn.init.normal_(layer.fuser.weight, std=FUSER)
            if layer.spatial_proj is not None:
                layer.spatial_proj.copy_(
                    near / near.sum(1, keepdim=True) + NOISE * torch.randn(SPLIT, SPLIT)
                )
    return model


@click.command(cls=Command)
@click.argument("teacher", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def main(teacher: Path, out: Path) -> None:
    """Write the folder OUT with the vocabulary and the embeddings of the BERT in TEACHER."""
    if out.exists():
        raise ConfigError(f"{out} is there already: nothing was written; choose another folder")
    try:
        table = embedding(AutoModel.from_pretrained(teacher))
    except LOADING_ERRORS as error:
        raise ModelError(
            f"{teacher}: no BERT can be loaded from it ({first_line(error)})"
        ) from error
    model = new_student(table)
    sentence_transformer(model, WordPieceTokenizer.load(teacher), out)


if __name__ == "__main__":
    main()
