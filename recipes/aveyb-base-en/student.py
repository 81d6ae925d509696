"""The teacher's states, and a student that begins with the teacher's embedding."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from muon import Muon
from torch import nn
from transformers import AutoModel

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-small-en"))
from checkpoints import STATE, read_state

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.folders import read_object
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

SPLIT = 256
REACH = 4.0  # tokens over which a static matrix starts to fall to 1/e
NOISE = 0.005  # of a static matrix, so that positions do not start equal
FUSER = 0.01  # standard deviation: at the start a layer changes little


@dataclass(frozen=True)
class Batch:
    """A group of texts of similar length, with what the teacher says of them.

    ids: int64 `[B, T]`, without marks; lengths: int64 `[B]`; mask: float32 `[B, T, 1]`.
    states: float32 `[B, T, D]` each, after no layer, one pair's share of the layers, two, ..., all.
    vectors: float32 `[B, D]`, the teacher's own unit vectors, to which its marks belong.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor
    states: tuple[torch.Tensor, ...]
    vectors: torch.Tensor


class Teacher:
    """A BERT-like encoder whose vectors are means of its last states, with [CLS] and [SEP] around a text."""

    def __init__(self, folder: Path, every: int) -> None:
        """Load the model in a folder in float32; a pair of the student's layers stands for `every` of its layers."""
        self.every = every
        self.network = AutoModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()
        self.fingerprint = f"{folder.parent.name}@{hash_file(folder / 'model.safetensors').sha256[:16]}"
        vocabulary = read_vocabulary(folder)
        self.cls_id, self.sep_id = vocabulary.cls_id, vocabulary.sep_id

    @classmethod
    def load(cls, folder: Path, pairs: int) -> Teacher:
        """Load the teacher of a student with so many pairs of layers.

        Raises:
            ConfigError: its layers cannot be shared out evenly.
            ModelError: there is no such model in the folder.
        """
        settings = read_object(folder / "config.json")
        layers = settings.get("num_hidden_layers")
        if not isinstance(layers, int):
            raise ModelError(f"{folder}: no teacher here (config.json names no number of layers); give BERT's like")
        if layers % pairs:
            raise ConfigError(f"the teacher has {layers} layers, which {pairs} pairs do not share out evenly")
        return cls(folder, layers // pairs)

    @torch.no_grad()
    def batch(self, texts: Sequence[np.ndarray]) -> Batch:
        """Return the states of some texts, ids uint16 `[t]` each, of any length up to the teacher's own limit."""
        lengths = torch.tensor([len(ids) for ids in texts])
        marked = torch.zeros(len(texts), int(lengths.max()) + 2, dtype=torch.int64)
        for row, ids in enumerate(texts):
            marked[row, : len(ids) + 2] = torch.tensor([self.cls_id, *ids.tolist(), self.sep_id])
        columns = torch.arange(marked.shape[1])
        exists = (columns < lengths[:, None] + 2).float()
        found = self.network(marked, attention_mask=exists.long(), output_hidden_states=True).hidden_states
        vectors = nn.functional.normalize((found[-1].float() * exists[..., None]).sum(1), dim=-1)
        mask = (columns[:-2] < lengths[:, None]).float()[..., None]
        ids = marked[:, 1:-1] * mask[..., 0].long()
        states = tuple(state[:, 1:-1].float() for state in found[:: self.every])
        return Batch(ids, lengths, mask, states, vectors)

    def embedding(self) -> torch.Tensor:
        """Return float32 `[V, D]`: what the teacher embeds a token as, with the mean of its positions in a split."""
        parts = self.network.embeddings
        positions = parts.position_embeddings.weight[1 : SPLIT + 1].mean(0)
        with torch.no_grad():
            rows: torch.Tensor = parts.LayerNorm(
                parts.word_embeddings.weight + parts.token_type_embeddings.weight[0] + positions
            )
        return rows.float()


def new_student(teacher: Teacher, pairs: int, expansion: int, seed: int) -> AveyBModel:
    """Return a student of `pairs` times a static and a dynamic layer, with the teacher's embedding.

    Its compressor is zero: a split that retrieves others begins as one that does not.
    """
    table = teacher.embedding()
    config = AveyBConfig(
        vocab_size=len(table),
        hidden_size=table.shape[1],
        num_hidden_layers=2 * pairs,
        split_size=SPLIT,
        expansion_factor=expansion,
        final_norm=False,
        norm_eps=1e-6,
        similarity_eps=1e-6,
        static_init="local",
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    model = AveyBModel(config)
    with torch.no_grad():
        model.embed.weight.copy_(table)
        model.ranker.down_proj.zero_()
        place = torch.arange(SPLIT)
        near = torch.exp(-(place[:, None] - place).abs() / REACH)
        for layer in model.layers:
            nn.init.kaiming_uniform_(layer.enricher.weight, a=5**0.5)
            nn.init.normal_(layer.fuser.weight, std=FUSER)
            if layer.spatial_proj is not None:
                layer.spatial_proj.copy_(near / near.sum(1, keepdim=True) + NOISE * torch.randn(SPLIT, SPLIT))
    return model


def check_student(model: AveyBModel, folder: Path, teacher: Teacher, pairs: int) -> None:
    """Check that a model loaded from a folder can be a student of the teacher.

    Raises:
        InputError: its vocabulary, its width or its number of pairs of layers is another.
    """
    if len(model.layers) != 2 * pairs:
        raise InputError(f"{folder} has {len(model.layers)} layers, {pairs} pairs are {2 * pairs}: give --pairs")
    own, wanted = tuple(model.embed.weight.shape), tuple(teacher.network.embeddings.word_embeddings.weight.shape)
    if own != wanted:
        raise InputError(f"{folder}: an embedding of the shape {own}, the teacher's has {wanted}: give its student")


def run_pair(model: AveyBModel, pair: int, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Run two layers on texts of one split each, `[B, T, D]` -> the same."""
    for layer in model.layers[2 * pair : 2 * pair + 2]:
        x = layer(x, lengths)
    return x


def layer_optimizer(model: AveyBModel, learning_rate: float, embedding_rate: float) -> Muon:
    """Return an optimizer that orthogonalizes the layers' linear maps; static matrices mix tokens and are none."""
    maps = [part.weight for layer in model.layers for part in (layer.enricher, layer.fuser)]
    known = {id(parameter) for parameter in [*maps, model.embed.weight]}
    rest = [p for p in model.parameters() if id(p) not in known and p.requires_grad]
    groups = [
        {"params": maps, "rate": 1.0, "orthogonal": True},
        {"params": rest, "rate": 1.0},
        {"params": [model.embed.weight], "rate": embedding_rate},
    ]
    return Muon(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)


def checkpoint_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the student's tensors of a checkpoint.

    Raises:
        InputError: the file is cut short.
    """
    prefix = "weights.model."
    found = read_state(checkpoint / STATE)
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
