"""Avey, the causal language model that Avey-B descends from (Hammoud and Acharya, 2025).

A text is cut into splits of S tokens. A ranker puts the k most relevant earlier splits before each
split, weighted by their relevance, and the layers mix these C = (k + 1) S tokens causally.

Two ways of scoring a text differ. As trained, all positions of a split share one ranking, which has
seen the whole split, so that a position's logits depend a little on the tokens behind it. Strict
scoring ranks for each position by its own prefix, as generation does. The two agree at the last
position of a split and of a text.

Generation keeps each text's finished splits and their scores. A new token adds its best cosine with
each finished split, which costs O(N d), and the layers run on the last context alone. The layers'
states cannot be kept: a new token changes the weights of all retrieved splits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from aveyb_retrieval.encoder.network.model import IGNORED_LABEL
from aveyb_retrieval.encoder.network.tensors import check_complete, check_fits
from aveyb_retrieval.errors import InputError, ModelError
from aveyb_retrieval.family.config import AveyConfig, AveySettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

RANKED_TOKENS = 1024  # tokens whose cosines with the whole text exist at once
# Scores that differ by rounding alone are ties, which the earlier split wins, however they were
# summed up.
SCORE_STEP = 2.0**-14
_TENSOR = re.compile(r"^(?:[A-Za-z_]\w*\.)*?(wte\.weight|blocks\.\d+\..+|ln_f\.weight)$")


class AveyContextualizer(nn.Module):
    """`gate * ((tril(V) * cosines) mixed)` over the tokens of a context.

    This is equation 2 without its activation; the mixed half stands on the left.
    """

    def __init__(self, settings: AveySettings) -> None:
        super().__init__()
        self.eps = settings.similarity_eps
        self.spatial_proj = nn.Parameter(torch.empty(settings.context_size, settings.context_size))

    def forward(self, tail: torch.Tensor) -> torch.Tensor:
        """Mix `[n, T, 2 m]`, T up to C, to `[n, T, m]`."""
        mixed, gate = tail.chunk(2, dim=-1)
        unit = mixed / (mixed.square().sum(-1, keepdim=True) + self.eps).sqrt()
        cosines = unit @ unit.transpose(1, 2)
        width = tail.shape[1]
        return gate * ((self.spatial_proj[:width, :width].tril() * cosines) @ mixed)


class AveyProcessor(nn.Module):
    """Enricher, contextualizer and fuser (eq. 1 to 3)."""

    def __init__(self, settings: AveySettings) -> None:
        super().__init__()
        tail, bypass = settings.tail_size, settings.enriched_size - settings.tail_size
        self.sizes = [tail, bypass]
        self.enricher = nn.Linear(settings.hidden_size, tail + bypass)
        self.contextualizer = AveyContextualizer(settings)
        self.fuser = nn.Linear(tail // 2 + bypass, settings.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Process `[n, T, D]` to `[n, T, D]`."""
        tail, bypass = self.enricher(x).relu().square().split(self.sizes, dim=-1)
        return self.fuser(torch.cat([self.contextualizer(tail), bypass], dim=-1))


class AveyLayer(nn.Module):
    """`x + processor(norm(x))`; the modules have the names of the authors' tensors."""

    def __init__(self, settings: AveySettings) -> None:
        super().__init__()
        self.rms_norm = nn.RMSNorm(settings.hidden_size, settings.norm_eps)
        self.ctxt = AveyProcessor(settings)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layer on contexts `[n, T, D]`, T up to C."""
        return x + self.ctxt(self.rms_norm(x))


@dataclass(frozen=True)
class TextState:
    """What generation keeps of a text.

    Attributes:
        finished: `[i, S, D]`, embeddings of the splits before the current one.
        unit: `[i, S, D]`, the same as unit rows, in float32 at least.
        current: `[T, D]`, embeddings of the current split, T up to S.
        scores: float64 `[i]`, MaxSim of the current split with each finished one.
    """

    finished: torch.Tensor
    unit: torch.Tensor
    current: torch.Tensor
    scores: torch.Tensor

    @property
    def length(self) -> int:
        """The number of tokens so far."""
        return len(self.finished) * self.finished.shape[1] + len(self.current)


class AveyCache(Cache):
    """The states of a batch of texts, as `past_key_values` of transformers' `generate`."""

    is_compileable = False
    is_croppable = False

    def __init__(self, texts: list[TextState]) -> None:
        super().__init__(layers=[])
        self.texts = texts

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens of the longest text."""
        return max((text.length for text in self.texts), default=0)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let beam i go on from beam `beam_idx[i]`."""
        self.texts = [self.texts[i] for i in beam_idx.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each text `repeats` times."""
        self.texts = [text for text in self.texts for _ in range(repeats)]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the texts of these indices."""
        self.reorder_cache(indices)


class AveyForCausalLM(PreTrainedModel, GenerationMixin):
    """Token ids to scores of the next token, for texts of any length."""

    config_class = AveyConfig
    config: AveyConfig
    _input_embed_layer = "wte"  # where transformers finds the token embedding
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # transformers' Trainer then passes `num_items_in_batch`
    _no_split_modules = ["AveyLayer"]  # noqa: RUF012
    max_group_tokens = 16384  # tokens in one pass through the layers: bounds memory, not results

    def __init__(self, config: AveyConfig) -> None:
        """Make the model with random weights; `from_pretrained` loads trained ones."""
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.settings: AveySettings = config.settings
        self.blocks = nn.ModuleList(
            AveyLayer(self.settings) for _ in range(config.num_hidden_layers)
        )
        self.ln_f = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            init.zeros_(module.bias)
        if isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)
        if isinstance(module, AveyContextualizer):
            init.xavier_normal_(module.spatial_proj)

    @classmethod
    def from_released(cls, state_dict: Mapping[str, torch.Tensor], **settings: Any) -> Self:
        """Build the model, in evaluation mode, from a released checkpoint's tensors and settings.

        Args:
            state_dict: the tensors, with or without a prefix; a tied head is ignored.
            **settings: the fields of the authors' `config.json`.

        Raises:
            ConfigError: the settings contradict each other.
            ModelError: a tensor is missing, left over, or of another shape than the settings say.
        """
        model = cls(AveyConfig.from_released(**settings))
        tensors = _without_prefix(state_dict)
        expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
        where = "released checkpoint"
        check_fits(where, tensors, expected)
        _check_names(where, set(), tensors.keys() - expected.keys())
        model.load_state_dict(tensors)
        return model.eval()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Load a model whose every parameter is in the checkpoint, from safetensors only.

        Takes what transformers' `from_pretrained` takes; a folder or hub name in the authors'
        format loads, too.

        Raises:
            ModelError: the folder holds another kind of model, or no complete checkpoint.
        """
        name = pretrained_model_name_or_path
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs["use_safetensors"] = True
        try:
            loaded: Any = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        except OSError as error:
            raise ModelError(
                f"{name}: no Avey language model can be read there: {error}"
            ) from error
        model, info = loaded
        _check_names(str(name), info["missing_keys"], info["unexpected_keys"])
        # with the information that transformers' users may ask for, as there
        return cast("Self", (model, info) if wants_info else model)

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
            attention_mask: `[B, T]` (or wider: the last T columns count), non-zero where a token
                exists; None: all exist. Padding may be anywhere.
            labels: int64 `[B, T]`, the token that follows each position, -100 where there is none:
                shifted by one already, as in the authors' code.
            past_key_values: the cache of an earlier call.
            use_cache: return a cache; then only the last position of each text is scored. None:
                False.
            logits_to_keep: score the last n columns only; 0: all.
            strict: give each position the ranking of its own prefix, for S times the work.
            num_items_in_batch: labels in the whole (accumulated) batch; the loss is then the sum
                over that number.

        Returns:
            `logits` `[B, T, V]` (`[B, 1, V]` with a cache, `[B, n, V]` with `logits_to_keep`),
            at padding those of the last token before it; `loss` (mean cross entropy, float32) with
            labels; `past_key_values` with a cache.

        Raises:
            InputError: shapes that do not fit each other, or labels where only some positions are
                scored.
        """
        present = self._present(input_ids, attention_mask)
        if use_cache or past_key_values is not None:
            if labels is not None or strict:
                raise InputError(
                    "a cache scores the last position only; give labels or strict=True without one"
                )
            cache = self.new_cache(len(input_ids)) if past_key_values is None else past_key_values
            return self._extend(cache, input_ids, present)
        if labels is not None and logits_to_keep not in (0, input_ids.shape[1]):
            raise InputError(
                f"logits_to_keep is {logits_to_keep}; labels need the logits of every position"
            )
        if labels is not None and labels.shape != input_ids.shape:
            raise InputError(
                f"labels have shape {tuple(labels.shape)}, input_ids {tuple(input_ids.shape)}"
            )
        hidden = self._encode(input_ids, present, strict=strict)
        logits = self._logits(hidden[:, -logits_to_keep:])
        loss = None if labels is None else _mean_loss(logits, labels, num_items_in_batch)
        return CausalLMOutputWithPast(loss=loss, logits=logits)

    def new_cache(self, texts: int) -> AveyCache:
        """Return an empty cache for a batch of `texts` texts."""
        weight, size = self.wte.weight, self.settings.split_size
        none = weight.new_empty(0, size, weight.shape[1])
        empty = TextState(
            finished=none,
            unit=_wide(none),
            current=none[:, 0],
            scores=torch.empty(0, dtype=torch.float64, device=weight.device),
        )
        return AveyCache([empty] * texts)

    def _present(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return which places hold a token, bool `[B, T]`."""
        if input_ids.dim() != 2:
            raise InputError(f"input_ids must be [B, T]; their shape is {tuple(input_ids.shape)}")
        if attention_mask is None:
            return torch.ones_like(input_ids, dtype=torch.bool)
        batch, width = input_ids.shape
        if attention_mask.dim() != 2 or len(attention_mask) != batch:
            wide_enough = False
        else:
            wide_enough = attention_mask.shape[1] >= width
        if not wide_enough:
            raise InputError(
                f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids"
                f" {tuple(input_ids.shape)}: unequal"
            )
        return attention_mask[:, attention_mask.shape[1] - width :] != 0

    def _encode(
        self, input_ids: torch.Tensor, present: torch.Tensor, *, strict: bool
    ) -> torch.Tensor:
        """Return hidden states `[B, T, D]` after the layers.

        Padding after a token has that token's state, so that the last column of a text that is
        padded on the right says what follows the text. Zeros before the first token.
        """
        vectors, places = [], []
        for row, exists in enumerate(present):
            columns = exists.nonzero()[:, 0]
            x = self._splits(self.wte(input_ids[row, columns]))
            contexts = self._contexts_of_text(x, len(columns), strict=strict)
            vectors += [self._run(*context) for context in contexts]
            places.append(row * input_ids.shape[1] + columns)
        if not vectors:
            return self.wte.weight.new_zeros(*input_ids.shape, self.settings.hidden_size)
        tokens = torch.cat(vectors)
        hidden = tokens.new_zeros(input_ids.numel(), self.settings.hidden_size)
        hidden = hidden.index_copy(0, torch.cat(places), tokens).view(*input_ids.shape, -1)
        return hidden if present.all() else _carried(hidden, present)

    def _splits(self, x: torch.Tensor) -> torch.Tensor:
        """Cut a text `[T, D]` into splits `[n, S, D]`; zeros fill the last one up."""
        missing = -len(x) % self.settings.split_size
        return pad(x, (0, 0, 0, missing)).view(-1, self.settings.split_size, x.shape[1])

    def _contexts_of_text(
        self, x: torch.Tensor, length: int, *, strict: bool
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield contexts of a text and the rows to keep of them, which follow the text's order.

        Args:
            x: `[n, S, D]`, the text's splits.
            length: tokens of the text.
            strict: one context for each token instead of one for each split.

        Yields:
            `[m, C, D]` and int64 `[t]`, rows of the flattened contexts.
        """
        size, context = self.settings.split_size, self.settings.context_size
        unit = self._unit(x)
        first_of_split = context - size
        together = max(1, self.max_group_tokens // context)
        if strict:
            for i in range(len(x)):
                tokens = min(size, length - i * size)
                best = best_cosines(unit[i, :tokens], unit[:i])
                for part, slots in zip(
                    best.double().cumsum(0).split(together),
                    torch.arange(tokens, device=x.device).split(together),
                    strict=True,
                ):
                    current = x[i].expand(len(part), -1, -1)
                    rows = torch.arange(len(part), device=x.device) * context
                    yield self._contexts(current, x[:i], part), rows + first_of_split + slots
            return
        scores = self._all_scores(unit)
        slots = torch.arange(first_of_split, context, device=x.device)
        for start in range(0, len(x), together):
            stop = min(start + together, len(x))
            rows = torch.arange(stop - start, device=x.device)[:, None] * context + slots
            yield (
                self._contexts(x[start:stop], x, scores[start:stop]),
                rows.flatten()[: length - start * size],
            )

    def _all_scores(self, unit: torch.Tensor) -> torch.Tensor:
        """Score the splits of a text `[n, S, D]` (unit rows) with those before them.

        Returns:
            float64 `[n, n]`; -inf where the column is not an earlier split.
        """
        n, size, _ = unit.shape
        together = max(1, RANKED_TOKENS // size)
        parts = [
            best_cosines(part.flatten(0, 1), unit).double().view(len(part), size, n).sum(1)
            for part in unit.split(together)
        ]
        later = torch.ones(n, n, dtype=torch.bool, device=unit.device).triu()
        return torch.cat(parts).masked_fill(later, float("-inf"))

    def _contexts(
        self, current: torch.Tensor, splits: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        """Put the weighted retrieved splits before each current one: `[w1 X_r1 ... wk X_rk, X]`.

        Where a split has fewer than k predecessors, rows of zeros stand on the left. They take part
        in every layer, as in the authors' code.

        Args:
            current: `[n, T, D]`.
            splits: `[i, S, D]`, the splits to choose from.
            scores: float64 `[n, i]`, -inf where a split must not be chosen.

        Returns:
            `[n, k S + T, D]`.
        """
        settings = self.settings
        chosen, weights = choose_splits(scores, settings.num_retrieved, settings.weight_norm)
        weighted = splits[chosen] * weights[..., None, None].to(splits.dtype)
        missing = settings.num_retrieved - chosen.shape[1]
        weighted = pad(weighted, (0, 0, 0, 0, missing, 0))
        return torch.cat([weighted.flatten(1, 2), current], dim=1)

    def _run(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Run the layers on contexts and keep some rows of the flattened result: `[t, D]`."""
        for layer in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x)
            else:
                x = layer(x)
        return x.flatten(0, 1)[rows]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.ln_f(hidden), self.wte.weight)

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x / (|x| + eps)`, in float32 at least."""
        x = _wide(x)
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / (norms + self.settings.similarity_eps)

    @torch.no_grad()
    def _extend(
        self, cache: AveyCache, input_ids: torch.Tensor, present: torch.Tensor
    ) -> CausalLMOutputWithPast:
        """Append tokens to the texts of a cache and score the token after each text."""
        cache.texts = [
            self._append(text, self.wte(ids[exists]))
            for text, ids, exists in zip(cache.texts, input_ids, present, strict=True)
        ]
        hidden = torch.stack([self._last_hidden(text) for text in cache.texts])
        return CausalLMOutputWithPast(logits=self._logits(hidden)[:, None], past_key_values=cache)

    def _append(self, text: TextState, x: torch.Tensor) -> TextState:
        """Return a text with tokens `[t, D]` at its end."""
        size = self.settings.split_size
        if len(text.current) + len(x) > size:
            x = torch.cat([text.current, x])
            splits = (len(x) - 1) // size
            finished = x[: splits * size].view(splits, size, -1)
            x = x[splits * size :]
            text = TextState(
                finished=torch.cat([text.finished, finished]),
                unit=torch.cat([text.unit, self._unit(finished)]),
                current=x[:0],
                scores=text.scores.new_zeros(len(text.finished) + splits),
            )
        best = best_cosines(self._unit(x), text.unit)
        return replace(
            text,
            current=torch.cat([text.current, x]),
            scores=text.scores + best.double().sum(0),
        )

    def _last_hidden(self, text: TextState) -> torch.Tensor:
        """Return the hidden state `[D]` of a text's last token; zeros for an empty text."""
        if not len(text.current):
            return self.wte.weight.new_zeros(self.settings.hidden_size)
        context = self._contexts(text.current[None], text.finished, text.scores[None])
        last = torch.tensor([context.shape[1] - 1], device=context.device)
        return self._run(context, last)[0]


def best_cosines(tokens: torch.Tensor, splits: torch.Tensor) -> torch.Tensor:
    """Return the best cosine of each token `[t, D]` with each split `[i, S, D]`, `[t, i]`.

    Both hold unit rows. The sum over the tokens of a split is its MaxSim score.
    """
    with torch.autocast(tokens.device.type, enabled=False):
        cosines = tokens @ splits.flatten(0, 1).T
    return cosines.view(len(tokens), *splits.shape[:2]).amax(-1)


def choose_splits(
    scores: torch.Tensor, k: int, weight_norm: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the best min(k, i) splits of each row, in reading order, and weight them.

    Args:
        scores: float `[n, i]`, -inf where a split must not be chosen.
        k: how many splits to choose.
        weight_norm: "max" or "first", as in `AveyConfig`.

    Returns:
        int64 and float `[n, min(k, i)]`: the splits, and their weights. The weight is 0 in the
        columns on the left where a row has fewer.
    """
    count = min(k, scores.shape[1])
    if count == 0:
        return scores[:, :0].long(), scores[:, :0]
    steps = (scores.detach() / SCORE_STEP).round()
    ranking = steps.argsort(dim=1, descending=True, stable=True)[:, :count]
    missing = scores.gather(1, ranking).isneginf()
    order = ranking.masked_fill(missing, -1).argsort(dim=1, stable=True)
    chosen, missing = ranking.gather(1, order), missing.gather(1, order)
    best = scores.gather(1, chosen).masked_fill(missing, 0)
    first_in_order = missing.sum(1, keepdim=True).clamp_max(count - 1)
    if weight_norm == "max":
        divisor = scores.gather(1, ranking[:, :1])
    else:
        divisor = best.gather(1, first_in_order)
    without_weight = missing[:, -1:] | (divisor == 0)
    return chosen, best / divisor.masked_fill(without_weight, 1)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _carried(hidden: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Return `[B, T, D]` with each row of padding that of the last token before it, or zeros.

    present: bool `[B, T]`, where a token exists.
    """
    columns = torch.arange(present.shape[1], device=present.device)
    last = torch.where(present, columns, -1).cummax(1).values[..., None]
    rows = hidden.gather(1, last.clamp_min(0).expand_as(hidden))
    return rows.masked_fill(last < 0, 0)


def _without_prefix(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of the model itself, without a prefix and without a tied head."""
    matches = {name: _TENSOR.match(name) for name in state_dict}
    return {match[1]: state_dict[name] for name, match in matches.items() if match}


def _check_names(where: str, missing: set[str], unexpected: set[str]) -> None:
    """Raise ModelError unless a checkpoint fills the model and holds nothing else."""
    check_complete(where, set(missing), set())
    if unexpected:
        raise ModelError(
            f"{where}: the checkpoint holds {min(unexpected)!r}, which has no place in the model;"
            " weights and config.json belong to different models"
        )


def _mean_loss(
    logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the mean cross entropy at the labels, or with `items` the sum over that number."""
    total = cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    if items is None:
        items = (labels != IGNORED_LABEL).sum().clamp_min(1)
    return total / items
