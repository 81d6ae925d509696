"""Avey-B as its paper writes it: one file to read with the paper, by the names of its equations.

The encoder in `aveyb_retrieval.encoder` is fast and gives the same, but for weights whose divisor
is near 0 (`Ranker.weights`). This one is plain torch, imports nothing of it, and has the choices
that the paper compares and leaves (tables 4, 6 and 10). As in the encoder there are an RMSNorm in
front of equation 1, a bias in 3, the gate of 2 in 4 and in 7, and a residual in 8.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear, normalize, pad, relu, rms_norm

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from aveyb_retrieval import AveyBModel
    from aveyb_retrieval.encoder.settings import EncoderSettings

# What the paper fixes. A model with other values, such as a released one, is another model.
PAPER = {
    "enricher_activation": "relu2",
    "mix_activation": "relu",
    "similarity_norm": "sum",
    "learned_residual": False,
    "weight_norm": "max",
    "retrieved_order": "sequence",
}
CHOICES = {
    "ranker_direction": ("past", "both"),
    "compressor": ("linear", "none"),
    "similarity_norm": ("sum", "none", "rms", "softmax", "scaled_softmax"),
    "coupled": (False, True),
}


@dataclass(frozen=True)
class PaperChoices:
    """The choices that the paper compares; the defaults are those that it takes.

    Attributes:
        ranker_direction: "past": a split retrieves earlier splits; "both": any other one (table 4).
        compressor: "linear": equation 8; "none": the layers see all (k + 1) S tokens, and the last
            S are kept (table 10).
        similarity_norm: of the rows of a dynamic layer's cosines (tables 6 and 10).
        coupled: every layer is Avey's, equation 2 (table 10).
    """

    ranker_direction: str = "past"
    compressor: str = "linear"
    similarity_norm: str = "sum"
    coupled: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = {type(choice) for choice in CHOICES[field.name]}
            if type(value) not in kinds or value not in CHOICES[field.name]:
                raise ConfigError(
                    f"{field.name} is {value!r}; choose one of"
                    f" {', '.join(map(str, CHOICES[field.name]))}"
                )
        if self.coupled and self.similarity_norm != "sum":
            raise ConfigError(
                f"coupled is True and similarity_norm {self.similarity_norm!r}: coupled layers take"
                " the cosines as they are; leave one of the two out"
            )


class ReferenceLayer(nn.Module):
    """A layer of the neural processor on contexts `X` `[n, C, d]`: equations 1 to 7."""

    def __init__(
        self, layer: Any, settings: EncoderSettings, choices: PaperChoices, tokens: int
    ) -> None:
        """Copy the parameters of an encoder's layer, and draw those that it lacks.

        Args:
            layer: a layer of `AveyBModel`.
            settings: the model's.
            choices: what to do otherwise.
            tokens: C, the tokens of a full context.
        """
        super().__init__()
        self.eps, self.norm_eps = settings.similarity_eps, settings.norm_eps
        self.similarity_norm, self.coupled = choices.similarity_norm, choices.coupled
        self.sizes = [settings.bypass_size, settings.mixed_size, settings.mixed_size]
        self.norm_weight = _copy(layer.norm.weight)
        self.U, self.b = _copy(layer.enricher.weight), _copy(layer.enricher.bias)
        self.O, self.o = _copy(layer.fuser.weight), _copy(layer.fuser.bias)
        self.V = None
        if self.coupled or layer.spatial_proj is not None:
            self.V = _copy_or_draw(layer.spatial_proj, tokens)
        self.b_mix = None
        if layer.mix_bias is not None:
            missing = tokens - len(layer.mix_bias)
            self.b_mix = nn.Parameter(pad(layer.mix_bias.detach(), (missing, 0)).clone())

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Process contexts of up to C tokens, `[n, T, d]` to `[n, T, d]`."""
        Z = relu(linear(rms_norm(X, X.shape[-1:], self.norm_weight, self.norm_eps), self.U, self.b))
        Z = Z.square()  # equation 1: the activation is ReLU squared
        Z_h, Z_tl, Z_tr = Z.split(self.sizes, dim=-1)
        mixed = self.mix(Z_tr)
        if self.b_mix is not None:
            mixed = mixed + self.b_mix[: X.shape[1], None]
        c = Z_tl * relu(mixed)  # bias, activation and gate of equations 2, 4 and 7
        return X + linear(torch.cat([Z_h, c], dim=-1), self.O, self.o)  # equation 3

    def mix(self, Z: torch.Tensor) -> torch.Tensor:
        """Mix the tokens of each context, `[n, T, m]` to `[n, T, m]`."""
        T = Z.shape[1]
        if self.V is not None and not self.coupled:
            return self.V[:T, :T] @ Z  # equation 4
        N = normalize(Z, dim=-1)
        S = N @ N.transpose(1, 2)  # equation 5
        if self.V is not None:
            return (self.V[:T, :T] * S) @ Z  # equation 2
        return self.normalized(S, Z.shape[-1]) @ Z  # equation 7

    def normalized(self, S: torch.Tensor, width: int) -> torch.Tensor:
        """Normalize the rows of cosines `[n, T, T]` of vectors of `width` numbers."""
        if self.similarity_norm == "sum":
            return S / (S.sum(-1, keepdim=True) + self.eps)  # equation 6
        if self.similarity_norm == "rms":
            return S / (S.square().mean(-1, keepdim=True) + self.eps).sqrt()
        if self.similarity_norm == "softmax":
            return S.softmax(-1)
        if self.similarity_norm == "scaled_softmax":
            return (S / width**0.5).softmax(-1)
        return S


class ReferenceAveyB(nn.Module):
    """Avey-B: token ids `[B, T]` to one contextual vector a token, `[B, T, d]`."""

    def __init__(self, model: AveyBModel, choices: PaperChoices) -> None:
        """Copy a model's parameters; what they lack is drawn by torch's generator."""
        super().__init__()
        config = model.config
        for name, value in PAPER.items():
            if getattr(config, name) != value:
                raise ConfigError(
                    f"AveyBConfig.{name} is {getattr(config, name)!r}; the reference is the"
                    f" paper's, {value!r}"
                )
        self.choices = choices
        self.S, self.k = config.split_size, config.num_retrieved
        self.eps, self.norm_eps = config.similarity_eps, config.norm_eps
        self.zero_padding = config.tail == "zero_slots"
        compresses = choices.compressor == "linear" and self.k > 0
        self.embedding = _copy(model.embed.weight)
        self.P = None
        if compresses and model.ranker.down_proj is not None:
            self.P = _copy(model.ranker.down_proj)
        tokens = self.S if compresses else (self.k + 1) * self.S
        settings = config.settings
        self.layers = nn.ModuleList(
            ReferenceLayer(layer, settings, choices, tokens) for layer in model.layers
        )
        self.final_norm = None if model.ln_f is None else _copy(model.ln_f.weight)

    @classmethod
    def of(cls, model: AveyBModel, *, seed: int = 0, **choices: Any) -> ReferenceAveyB:
        """Return the reference with a model's parameters, in its mode, training or not.

        Args:
            model: an `AveyBModel` with the paper's choices.
            seed: decides the parameters that the choices need and the model lacks.
            **choices: fields of `PaperChoices`.

        Raises:
            ConfigError: the model is not the paper's, or the choices contradict each other.
        """
        if unknown := choices.keys() - CHOICES.keys():
            raise ConfigError(
                f"{min(unknown)} is no choice of the reference; choose among {', '.join(CHOICES)}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(model, PaperChoices(**choices)).train(model.training)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Encode texts of one length: int64 `[B, T]` to `[B, T, d]`."""
        B, T = ids.shape
        if T == 0:
            return self.embedding[ids]
        splits = self.splits(self.embedding[ids])
        retrieved = self.retrieved(splits)
        n, S = splits.shape[1:3]
        last = S if self.zero_padding else T - (n - 1) * S  # tokens of the last split
        full = n if last == S else n - 1
        parts = []
        for first, stop, length in ((0, full, S), (full, n, last)):
            X, X_r = splits[:, first:stop, :length], retrieved[:, first:stop]
            H = self.process(X.flatten(0, 1), X_r.flatten(0, 1))
            parts.append(H.reshape(B, -1, H.shape[-1]))
        H = torch.cat(parts, dim=1)[:, :T]
        if self.final_norm is None:
            return H
        return rms_norm(H, H.shape[-1:], self.final_norm, self.norm_eps)

    def splits(self, X: torch.Tensor) -> torch.Tensor:
        """Cut `[B, T, d]` into splits, zeros behind the last token: `[B, n, S, d]`."""
        missing = -X.shape[1] % self.S
        return pad(X, (0, 0, 0, missing)).unflatten(1, (-1, self.S))

    def retrieved(self, X: torch.Tensor) -> torch.Tensor:
        """Return each split's k best other splits, weighted, in reading order (section 3.1).

        A split with fewer candidates has zeros on the left. `[B, n, S, d]` to `[B, n, k S, d]`.
        """
        B, n, S, d = X.shape
        count = min(self.k, n - 1)
        if count == 0:
            return X.new_zeros(B, n, self.k * S, d)
        scores = self.maxsim(X)
        ranking = scores.argsort(dim=-1, descending=True, stable=True)[..., :count]
        highest = scores.gather(-1, ranking[..., :1])
        missing = scores.gather(-1, ranking).isneginf()
        order = ranking.masked_fill(missing, -1).argsort(dim=-1, stable=True)
        chosen, missing = ranking.gather(-1, order), missing.gather(-1, order)
        best = scores.gather(-1, chosen).masked_fill(missing, 0)
        none = highest.isneginf() | (highest == 0)
        weights = best / highest.masked_fill(none, 1)
        text = torch.arange(B, device=X.device)[:, None, None]
        weighted = X[text, chosen] * weights[..., None, None]
        return pad(weighted.flatten(2, 3), (0, 0, (self.k - count) * S, 0))

    def maxsim(self, X: torch.Tensor) -> torch.Tensor:
        """Score each split's candidates: the sum over its tokens of the best cosine.

        `[B, n, S, d]` to `[B, n, n]`, -inf where the column is no candidate.
        """
        n = X.shape[1]
        unit = X / (X.norm(dim=-1, keepdim=True) + self.eps)
        cosines = torch.einsum("bisd,bjtd->bijst", unit, unit)
        scores = cosines.amax(-1).sum(-1)
        candidates = torch.ones(n, n, dtype=torch.bool, device=X.device).fill_diagonal_(False)
        if self.choices.ranker_direction == "past":
            candidates = candidates.tril()
        return scores.masked_fill(~candidates, float("-inf"))

    def process(self, X: torch.Tensor, X_r: torch.Tensor) -> torch.Tensor:
        """Run the neural processor on splits `[n, T, d]` and what they retrieve, `[n, k S, d]`."""
        T = X.shape[1]
        H = torch.cat([X_r, X], dim=1)
        if self.P is not None:
            # equation 8, with the published version's residual
            H = self.P[:T, : H.shape[1]] @ H + X
        for layer in self.layers:
            H = layer(H)
        return H[:, H.shape[1] - T :]


def _copy(parameter: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone())


def _copy_or_draw(parameter: torch.Tensor | None, size: int) -> nn.Parameter:
    """Return a copy of a matrix `[size, size]`, or a new one if there is none of this size."""
    if parameter is not None and len(parameter) == size:
        return _copy(parameter)
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(size, size)))
