"""AveyBModel and its masked-language-modelling head as transformers models."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.utils import can_return_tuple

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.checkpoints import CheckpointLoading
from aveyb_retrieval.encoder.network.layers import AveyBLayer
from aveyb_retrieval.encoder.network.ranker import Ranker
from aveyb_retrieval.encoder.network.split_encoder import SplitEncoder
from aveyb_retrieval.errors import InputError

IGNORED_LABEL = -100
REACH_TOKENS = 2.0  # tokens over which the weight falls to 1/e
NOISE_SCALE = 0.3  # scale of the Xavier noise added, so that positions do not start equal
# weight of the right side relative to the left, alternating: two layers together distinguish the
# sides
RIGHT = (-1.0, 0.5)


class AveyBPreTrainedModel(CheckpointLoading, PreTrainedModel):
    """Initialization, saving and loading, also of folders in the authors' format (see
    `checkpoints.py`).
    """

    config_class = AveyBConfig
    base_model_prefix = "model"
    _input_embed_layer = "embed"  # where transformers finds the token embedding
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = (
        True  # transformers' Trainer then passes `num_items_in_batch` of an accumulated batch
    )
    _no_split_modules = ["AveyBLayer"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            if self.config.weight_init == "xavier":
                init.xavier_normal_(module.weight)
            else:
                init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, Ranker):
            if module.down_proj is not None:
                init.xavier_normal_(module.down_proj)
        elif isinstance(module, AveyBLayer):
            self._init_layer(module)

    def _init_layer(self, layer: AveyBLayer) -> None:
        if layer.spatial_proj is not None:
            if self.config.static_init == "local":
                init.copy_(layer.spatial_proj, local_matrix(len(layer.spatial_proj), layer.order))
            else:
                init.xavier_normal_(layer.spatial_proj)
        if layer.mix_bias is not None:
            init.zeros_(layer.mix_bias)
        if layer.alpha is not None:
            init.ones_(layer.alpha)


class AveyBModel(SplitEncoder, AveyBPreTrainedModel):
    """The encoder: token ids to one contextual vector per token.

    The ranker runs once per document on token embeddings; the layers run on splits of all
    documents, in groups of similar length. A text's vectors never depend on padding or on the rest
    of the batch.
    """

    def __init__(self, config: AveyBConfig) -> None:
        """Make the model with random weights; `from_pretrained` loads trained ones."""
        super().__init__(config)
        self._build(config.settings)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode a padded batch.

        Args:
            input_ids: int64 `[B, T]`.
            attention_mask: `[B, T]`, non-zero where a token exists; None: all exist. Padding may be
                anywhere.
            inputs_embeds: `[B, T, D]`, token embeddings instead of ids.
            output_hidden_states: give `hidden_states`, too; None: as the configuration says.

        Returns:
            `last_hidden_state` `[B, T, D]`; zeros where there is padding. `hidden_states`: the
            token embeddings, then the output of each layer, `[B, T, D]` each; the last one is
            `last_hidden_state`.

        Raises:
            InputError: neither or both of ids and embeddings are given, or shapes do not fit.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        embedding = None
        if inputs_embeds is not None and input_ids is None:
            embedding, input_ids = self._rows(inputs_embeds)
        elif input_ids is None or inputs_embeds is not None:
            raise InputError("give either input_ids or inputs_embeds, and not both")
        encoded = self.encode_batch(
            input_ids, attention_mask, embedding=embedding, every_layer=output_hidden_states
        )
        if not output_hidden_states:
            return BaseModelOutput(last_hidden_state=encoded)
        embedded = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            padding = attention_mask.to(embedded.device)[..., None] == 0
            embedded = embedded.masked_fill(padding, 0)
        outputs = encoded.split(self.config.hidden_size, dim=-1)
        return BaseModelOutput(last_hidden_state=outputs[-1], hidden_states=(embedded, *outputs))

    def _rows(self, inputs_embeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings `[B, T, D]` as a table `[B T, D]`, and the ids int64 `[B, T]` of its
        rows.
        """
        shape, size = tuple(inputs_embeds.shape), self.config.hidden_size
        if len(shape) != 3 or shape[2] != size:
            raise InputError(f"inputs_embeds must be [B, T, {size}]; their shape is {shape}")
        ids = torch.arange(shape[0] * shape[1], device=inputs_embeds.device)
        return inputs_embeds.flatten(0, 1), ids.view(shape[:2])


class AveyBForMaskedLM(AveyBPreTrainedModel):
    """The encoder with a head tied to the embedding, for masked-language modelling."""

    _tied_weights_keys = {"lm_head.weight": "model.embed.weight"}  # noqa: RUF012
    # a checkpoint without it is whole: transformers' Trainer ties it and warns of nothing
    _keys_to_ignore_on_save = {"lm_head.weight"}  # noqa: RUF012

    def __init__(self, config: AveyBConfig) -> None:
        """Make the model with random weights; `from_pretrained` loads trained ones."""
        super().__init__(config)
        self.model = AveyBModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> MaskedLMOutput:
        """Predict tokens.

        Args:
            input_ids: as for `AveyBModel`, as are `attention_mask`, `inputs_embeds` and
                `output_hidden_states`.
            labels: int64 `[B, T]`, -100 where there is no label.
            num_items_in_batch: labels in the whole (accumulated) batch; the loss is then the sum
                over that number.

        Returns:
            `loss` (mean cross entropy over labels, float32) and `logits`: with labels `[number of
            labels, V]`, in reading order, otherwise `[B, T, V]`.

        Raises:
            InputError: labels of another shape than the input.
        """
        encoded = self.model(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = encoded.last_hidden_state
        loss = None
        if labels is not None:
            if labels.shape != hidden.shape[:2]:
                raise InputError(
                    f"labels have shape {tuple(labels.shape)}, input_ids {tuple(hidden.shape[:2])}"
                )
            asked = labels != IGNORED_LABEL
            hidden, labels = hidden[asked], labels[asked]
        logits = self.lm_head(hidden)
        if labels is not None:
            total = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
            loss = total / (
                max(1, len(labels)) if num_items_in_batch is None else num_items_in_batch
            )
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


def local_matrix(size: int, order: int) -> torch.Tensor:
    """Return `V[i, j] = exp((1 - |i - j|) / REACH_TOKENS)` for j left of i, times RIGHT to the
    right, 0 for j = i; plus noise.

    The matrix V of a static layer has one weight for every pair of positions in a split. From a
    random start, training has to learn the influence of neighbouring tokens separately for each of
    S positions, and masked-language modelling stays near single-token frequencies for a long time.
    This one starts with the same weights around every position; training can change each of them.
    Without noise the mean square sum of a row is 1, that of a Xavier normal matrix.

    Returns float32 `[S, S]`, S = size; `order` static layers come before this one.
    """
    position = torch.arange(size)
    offset = position[None, :] - position[:, None]
    near = torch.exp((1 - offset.abs()) / REACH_TOKENS).masked_fill(offset == 0, 0)
    near = torch.where(offset > 0, near * RIGHT[order % len(RIGHT)], near)
    near = near / near.square().sum(1).mean().sqrt().clamp_min(torch.finfo(near.dtype).tiny)
    return near + NOISE_SCALE * nn.init.xavier_normal_(torch.empty(size, size))
