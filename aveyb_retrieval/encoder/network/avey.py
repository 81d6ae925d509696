"""Avey as a causal language model of transformers: training, strict scores, generation with caches.

In one pass over a text ("as trained") all positions of a split share its ranking, which has seen the whole split; so a
position's logits depend a little on tokens behind it. In strict mode every position has the ranking that its own prefix
gives, as in generation; the two agree at the last position of a split and of a text.

What generation keeps of each text: unit rows of its finished splits, and how well the current split matches them.

Every new token adds its best cosine with each finished split to that split's score, which costs O(N d) a token (Avey,
appendix on complexity). The layers' states cannot be kept: a new token changes the weights of all retrieved splits.

Avey as a causal language model of transformers: training, strict scores, generation with caches.

In one pass over a text ("as trained") all positions of a split share its ranking, which has seen the whole split; so a
position's logits depend a little on tokens behind it. In strict mode every position has the ranking that its own prefix
gives, as in generation; the two agree at the last position of a split and of a text.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from aveyb_retrieval.encoder.config import AveyConfig
from aveyb_retrieval.encoder.network.checkpoints import CheckpointLoading
from aveyb_retrieval.encoder.network.layers import AveyBLayer, RMSNorm
from aveyb_retrieval.encoder.network.ranker import SplitRanker
from aveyb_retrieval.encoder.network.splits import padded_table
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.kernels.maxsim import unit_rows

if TYPE_CHECKING:
    from collections.abc import Mapping


class TextState:
    """One text so far.

    Attributes:
        finished: int64 `[i, S]`, token ids of the splits before the current one.
        current: int64 `[T]`, those of the current split, up to S of them.
        scores: float64 `[i]`, the current split's MaxSim with each finished one.

    A shallow copy goes on by itself: tensors are replaced and never written to.
    """

    def __init__(self, embedding: torch.Tensor, split_size: int, eps: float) -> None:
        """Begin an empty text.

        Args:
            embedding: `[V, D]`, the token embedding table.
            split_size: S.
            eps: added to each norm.
        """
        self.embedding, self.eps = embedding, eps
        device = embedding.device
        self.finished = torch.empty(0, split_size, dtype=torch.int64, device=device)
        self.current = torch.empty(0, dtype=torch.int64, device=device)
        self.scores = torch.empty(0, dtype=torch.float64, device=device)
        self._unit = torch.empty(0, embedding.shape[1], device=device)  # of the finished splits, `[i S, D]`

    @torch.no_grad()
    def append(self, ids: torch.Tensor) -> None:
        """Add tokens int64 `[n]` at the end."""
        size = self.finished.shape[1]
        if len(self.current) + len(ids) > size:  # the current split is finished, and perhaps some after it
            everything = torch.cat([self.current, ids])
            splits = (len(everything) - 1) // size
            self._finish(everything[: splits * size].view(splits, size))
            ids, self.current = everything[splits * size :], everything[:0]
        self.scores = self.scores + self._best(ids).sum(0)
        self.current = torch.cat([self.current, ids])

    def _finish(self, splits: torch.Tensor) -> None:
        self.finished = torch.cat([self.finished, splits])
        self._unit = torch.cat([self._unit, unit_rows(self.embedding[splits.flatten()], self.eps)])
        self.scores = torch.zeros(len(self.finished), dtype=torch.float64, device=splits.device)

    def _best(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the best cosine of each token with each finished split, float64 `[n, i]`."""
        unit = unit_rows(self.embedding[ids], self.eps)
        return (unit @ self._unit.T).view(len(ids), *self.finished.shape).amax(-1).double()

    def scores_by_length(self) -> torch.Tensor:
        """Return the scores that the current split had after each of its tokens, float64 `[T, i]`."""
        return self._best(self.current).cumsum(0)


def choose(ranker: SplitRanker, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the k best splits for each row of scores.

    Args:
        ranker: gives k and the weights.
        scores: float `[n, i]`, i finished splits.

    Returns:
        int64 `[n, k]`, splits in reading order, -1 on the left where there are fewer; float32 weights `[n, k]`.
    """
    k = ranker.num_retrieved
    if k == 0:
        return torch.empty(len(scores), 0, dtype=torch.int64, device=scores.device), scores[:, :0].float()
    best, chosen = torch.sort(scores.float(), dim=1, descending=True, stable=True)
    chosen, order = torch.sort(chosen[:, :k], dim=1)
    missing = (k - chosen.shape[1], 0)
    rows = torch.nn.functional.pad(chosen, missing, value=-1)
    return rows, ranker.weights(rows, torch.nn.functional.pad(best[:, :k].gather(1, order), missing))


class AveyCache(Cache):
    """The states of a batch of texts, as `past_key_values` of transformers' `generate`."""

    is_compileable = False
    is_croppable = False

    def __init__(self, texts: list[TextState]) -> None:
        super().__init__(layers=[])
        self.texts = texts

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens of the longest text."""
        return max((text.finished.numel() + len(text.current) for text in self.texts), default=0)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let beam i go on from beam `beam_idx[i]`."""
        self.texts = [copy(self.texts[i]) for i in beam_idx.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each text `repeats` times."""
        self.texts = [copy(text) for text in self.texts for _ in range(repeats)]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some texts."""
        self.texts = [self.texts[i] for i in indices.tolist()]


IGNORED_LABEL = -100
_RELEASED_NAME = re.compile(r"^(?:[A-Za-z_]\w*\.)*?(wte\.weight|blocks\.\d+\..+|ln_f\.weight)$")
_RENAMED = (
    ("wte.", "embed."),
    ("blocks.", "layers."),
    (".rms_norm.", ".norm."),
    (".ctxt.contextualizer.", "."),
    (".ctxt.", "."),
)
_STRICT_CONTEXTS = 64  # contexts that strict mode runs at once


class AveyForCausalLM(CheckpointLoading, PreTrainedModel, GenerationMixin):
    """Token ids to scores of the next token, for texts of any length."""

    config_class = AveyConfig
    _input_embed_layer = "embed"  # where transformers finds the token embedding
    _tied_weights_keys = {"lm_head.weight": "embed.weight"}  # noqa: RUF012  (transformers' own form)
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # transformers' Trainer then passes `num_items_in_batch` of an accumulated batch
    _no_split_modules = ["AveyBLayer"]  # noqa: RUF012
    max_group_tokens = 16384  # tokens, retrieved ones included, in one pass through the layers: bounds memory

    def __init__(self, config: AveyConfig) -> None:
        """Make the model with random weights; `from_pretrained` loads trained ones."""
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.ranker = SplitRanker(config)
        self.layers = nn.ModuleList(AveyBLayer(config, "causal") for _ in range(config.num_hidden_layers))
        self.ln_f = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.gradient_checkpointing = False
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, AveyBLayer) and module.spatial_proj is not None:
            init.xavier_normal_(module.spatial_proj)

    @staticmethod
    def _released_tensors(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {match[1]: tensor for name, tensor in state_dict.items() if (match := _RELEASED_NAME.match(name))}
        return {_own_name(name): tensor for name, tensor in found.items()}

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Tell `generate` that the model makes its own cache."""
        return False

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        past_key_values: AveyCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        strict: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> CausalLMOutputWithPast:
        """Score the token after each position.

        Args:
            input_ids: int64 `[B, T]`; with `past_key_values` the tokens that are new.
            attention_mask: `[B, T]` (or longer: the last T columns count), non-zero where a token exists; None: all
                exist. Padding may be anywhere.
            labels: int64 `[B, T]`, the token that follows each position, -100 where none is asked: shifted by one
                already, as in the authors' code.
            past_key_values: the cache of an earlier call.
            use_cache: return a cache; then only the last position of each text is scored. None: False.
            logits_to_keep: score the last n columns only; 0: all.
            strict: give each position the ranking of its own prefix, S times the work; without gradient.
            num_items_in_batch: labels in the whole (accumulated) batch; the loss is then the sum over that number.

        Returns:
            `logits` `[B, T, V]` (`[B, 1, V]` with a cache, `[B, n, V]` with `logits_to_keep`), zeros at padding; `loss`
            (mean cross entropy, float32) with labels; `past_key_values` with a cache.

        Raises:
            InputError: shapes that do not fit each other, or labels where only some positions are scored.
        """
        present = self._present(input_ids, attention_mask)
        cache = None
        if use_cache or past_key_values is not None:
            if labels is not None or strict:
                raise InputError("a cache scores the last position only; give labels or strict=True without one")
            cache = past_key_values if past_key_values is not None else self.new_cache(len(input_ids))
            for text, row, exists in zip(cache.texts, input_ids, present, strict=True):
                text.append(row[exists])
            hidden = self._last(cache.texts)[:, None]
        else:
            kept = logits_to_keep or input_ids.shape[1]
            if labels is not None and kept < input_ids.shape[1]:
                raise InputError(f"logits_to_keep is {logits_to_keep}; labels need the logits of every position")
            hidden = self._strict(input_ids, present, kept) if strict else self._as_trained(input_ids, present, kept)
        logits = self.lm_head(hidden)
        loss = None if labels is None else _loss(logits, labels, num_items_in_batch)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def new_cache(self, texts: int) -> AveyCache:
        """Return an empty cache for a batch of `texts` texts."""
        make = (self.embed.weight, self.config.split_size, self.config.similarity_eps)
        return AveyCache([TextState(*make) for _ in range(texts)])

    def strict_logits(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Score the token after some positions of one text, each from its prefix alone, as generation does.

        Args:
            input_ids: int64 `[T]`.
            positions: int64 `[n]`, from 0 to T - 1.

        Returns:
            `[n, V]`, without gradient.

        Raises:
            InputError: a position is outside of the text.
        """
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < len(input_ids):
            raise InputError(
                f"positions go from {int(positions.min())} to {int(positions.max())}; the text has {len(input_ids)} "
                "tokens, counted from 0"
            )
        with torch.no_grad():
            return self.lm_head(self._strict_hidden(input_ids, positions))

    def _present(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        if input_ids.dim() != 2:
            raise InputError(f"input_ids must be [B, T]; their shape is {tuple(input_ids.shape)}")
        if attention_mask is None:
            return torch.ones_like(input_ids, dtype=torch.bool)
        width = input_ids.shape[1]
        if attention_mask.dim() != 2 or len(attention_mask) != len(input_ids) or attention_mask.shape[1] < width:
            raise InputError(
                f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids {tuple(input_ids.shape)}: unequal"
            )
        return attention_mask[:, attention_mask.shape[1] - width :] != 0

    def _as_trained(self, input_ids: torch.Tensor, present: torch.Tensor, kept: int) -> torch.Tensor:
        """Hidden states `[B, kept, D]` of the last columns, every split's ranking made from all of its tokens."""
        size, k = self.config.split_size, self.config.num_retrieved
        table, places_of = padded_table(input_ids, present.cpu().numpy(), size)
        retrieved = self.ranker.retrieve(table, self.embed.weight)
        free = torch.arange(size, device=table.ids.device) >= table.lengths[:, None]
        place = places_of.view(table.ids.shape).masked_fill(free, -1)  # slot of the table -> place in the batch
        asked = (place >= 0) & (place % input_ids.shape[1] >= input_ids.shape[1] - kept)
        vectors = self.embed(table.ids)
        out = vectors.new_zeros(input_ids.numel(), vectors.shape[-1])
        places, found = [], []
        longest = max(1, self.max_group_tokens // (k + 1))
        for group in table.groups(asked.any(1).cpu().numpy(), full_width=False, max_tokens=longest):
            rows, width = group.rows, group.width
            earlier = vectors[retrieved.rows[rows].clamp_min(0)]
            x = put_before(vectors[rows, :width], earlier, retrieved.weights[rows])
            chosen = asked[rows, :width]
            found.append(self._run_layers(x)[:, -width:][chosen])
            places.append(place[rows, :width][chosen])
        if found:
            tokens = torch.cat(found)
            out = out.to(tokens.dtype).index_copy(0, torch.cat(places), tokens)
        return out.view(*input_ids.shape, -1)[:, input_ids.shape[1] - kept :]

    def _run_layers(self, x: torch.Tensor) -> torch.Tensor:
        """Contexts `[n, C, D]` through all layers and the final norm."""
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x, None)
            else:
                x = layer(x, None)
        return self.ln_f(x)

    def _last(self, texts: list[TextState]) -> torch.Tensor:
        """Hidden states `[B, D]` of the last token of each text; zeros for a text without tokens."""
        hidden = self.embed.weight.new_zeros(len(texts), self.config.hidden_size)
        some = [i for i, text in enumerate(texts) if len(text.current)]
        if some:
            chosen = [choose(self.ranker, texts[i].scores[None]) for i in some]
            current = [texts[i].current for i in some]
            finished = [texts[i].finished for i in some]
            rows, weights = (torch.cat(parts) for parts in zip(*chosen, strict=True))
            hidden[some] = self._contexts(current, finished, rows, weights).to(hidden.dtype)
        return hidden

    def _strict(self, input_ids: torch.Tensor, present: torch.Tensor, kept: int) -> torch.Tensor:
        """Hidden states `[B, kept, D]` of the last columns, each from its prefix alone."""
        hidden = self.embed.weight.new_zeros(*input_ids.shape, self.config.hidden_size)
        with torch.no_grad():
            for row, (ids, exists) in enumerate(zip(input_ids, present, strict=True)):
                columns = torch.nonzero(exists)[:, 0]
                asked = torch.nonzero(columns >= input_ids.shape[1] - kept)[:, 0]
                if len(asked):
                    hidden[row, columns[asked]] = self._strict_hidden(ids[exists], asked).to(hidden.dtype)
        return hidden[:, input_ids.shape[1] - kept :]

    def _strict_hidden(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states `[n, D]` at positions int64 `[n]` of one text `[T]`."""
        size = self.config.split_size
        hidden = self.embed.weight.new_zeros(len(positions), self.config.hidden_size)
        (text,) = self.new_cache(1).texts
        for split in torch.unique(positions // size).tolist():
            read = text.finished.numel() + len(text.current)
            text.append(input_ids[read : (split + 1) * size])
            own = torch.nonzero(positions // size == split)[:, 0]
            lengths = positions[own] % size + 1
            scores = text.scores_by_length()
            for part, length in zip(own.split(_STRICT_CONTEXTS), lengths.split(_STRICT_CONTEXTS), strict=True):
                rows, weights = choose(self.ranker, scores[length - 1])
                current = [text.current[:n] for n in length.tolist()]
                hidden[part] = self._contexts(current, [text.finished] * len(part), rows, weights).to(hidden.dtype)
        return hidden

    def _contexts(
        self, current: list[torch.Tensor], finished: list[torch.Tensor], rows: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states `[n, D]` of the last token of each current split.

        Args:
            current: n tensors of token ids.
            finished: n tensors of the ids of their texts' finished splits `[i, S]`.
            rows: int64 `[n, k]`, which of those each retrieves; -1 for none.
            weights: float32 `[n, k]`.
        """
        ids = nn.utils.rnn.pad_sequence(current, batch_first=True)
        splits = [found[row.clamp_min(0)] if len(found) else found.new_zeros(len(row), found.shape[1])
                  for found, row in zip(finished, rows, strict=True)]  # fmt: skip
        x = self._run_layers(put_before(self.embed(ids), self.embed(torch.stack(splits)), weights))
        last = torch.tensor([len(own) for own in current], device=x.device) - ids.shape[1] - 1 + x.shape[1]
        return x[torch.arange(len(x), device=x.device), last]


def put_before(current: torch.Tensor, retrieved: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Put the weighted retrieved splits before each current one: `[w1 X_r1, ..., wk X_rk, X]`.

    Where a split has fewer than k predecessors the weights on the left are 0. Those rows are zeros and take part in
    every layer, as in the authors' code.

    Args:
        current: `[n, T, D]`, token embeddings, T up to S.
        retrieved: `[n, k, S, D]`, token embeddings.
        weights: float32 `[n, k]`.

    Returns:
        `[n, k S + T, D]`, in the dtype of `current`.
    """
    weighted = retrieved * weights[..., None, None].to(retrieved.dtype)
    return torch.cat([weighted.flatten(1, 2), current], dim=1)


def _own_name(name: str) -> str:
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return name


def _loss(logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
    if labels.shape != logits.shape[:-1]:
        raise InputError(f"labels have shape {tuple(labels.shape)}, input_ids {tuple(logits.shape[:-1])}")
    total = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return total / ((labels != IGNORED_LABEL).sum().clamp_min(1) if items is None else items)
