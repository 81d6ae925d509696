"""Configurations of the family's models. Only what a configuration needs is imported here.

transformers asks for them as soon as its own list of configurations is loaded.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.errors import ConfigError, ModelError

WEIGHT_NORMS = ("max", "first")
POOLS = ("mean", "max")
RECOVERIES = ("sum_first", "sum_last", "sum_max", "sum_mean", "average_last", "max_last")
_SMALLEST = {
    "vocab_size": 1,
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "split_size": 1,
    "num_retrieved": 0,
    "expansion_factor": 1,
}


class AveyConfig(PreTrainedConfig):
    """Configuration of an Avey language model.

    Sizes:
        vocab_size: Rows of the embedding, which is also the output layer.
        hidden_size: d, the width of a token.
        num_hidden_layers: Layers of the neural processor.
        split_size: S, tokens in a full split.
        num_retrieved: k, earlier splits put before each split. The authors' code counts the
            current split, too: its k is one more.
        expansion_factor: The enricher's output is `expansion_factor * d` wide.
        tail_share: The share of it that goes through the contextualizer, half of that mixed, half
            as gate; the rest bypasses it.

    Choices:
        weight_norm: A retrieved split is weighted by its score over the highest among the chosen,
            "max" (paper), or over that of the first of them in reading order, "first" (released
            code).

    Numerics:
        norm_eps: RMSNorm's epsilon.
        similarity_eps: Epsilon of all cosines.

    Initialization:
        initializer_range: Standard deviation of embedding and linear maps; V starts Xavier normal.

    Raises:
        ConfigError: a value is out of range or not one of its choices.
    """

    model_type = "avey"

    vocab_size: int = 50304
    hidden_size: int = 768
    num_hidden_layers: int = 26
    split_size: int = 64
    num_retrieved: int = 7
    expansion_factor: int = 4
    tail_share: float = 0.5
    weight_norm: str = "max"
    norm_eps: float = 1e-10
    similarity_eps: float = 1e-8
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False  # the embedding itself is the output layer: nothing to tie
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        """Check every field."""
        super().__post_init__(**kwargs)
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if type(value) is not int or value < smallest:
                raise ConfigError(
                    f"AveyConfig.{name} is {value!r}; it must be a whole number of at least"
                    f" {smallest}"
                )
        if self.weight_norm not in WEIGHT_NORMS:
            raise ConfigError(
                f"AveyConfig.weight_norm is {self.weight_norm!r}; choose one of"
                f" {', '.join(WEIGHT_NORMS)}"
            )
        if not 0 < self.tail_share <= 1 or not 0 < self.tail_size <= self.enriched_size:
            raise ConfigError(
                f"AveyConfig.tail_share is {self.tail_share}; it must be above 0 and at most 1, and"
                f" leave a tail of 2 or more of {self.enriched_size} columns"
            )

    @property
    def enriched_size(self) -> int:
        """The width of the enricher's output."""
        return self.expansion_factor * self.hidden_size

    @property
    def tail_size(self) -> int:
        """The width of the tail, an even number."""
        size = int(self.enriched_size * self.tail_share)
        return size + size % 2

    @property
    def context_size(self) -> int:
        """C, the tokens that a layer mixes: k retrieved splits and the current one."""
        return (self.num_retrieved + 1) * self.split_size

    @classmethod
    def small(cls, **overrides: Any) -> AveyConfig:
        """Return the paper's model of 153 M parameters."""
        return cls(**{"hidden_size": 768, "num_hidden_layers": 26, **overrides})

    @classmethod
    def medium(cls, **overrides: Any) -> AveyConfig:
        """Return the paper's model of 496 M parameters."""
        return cls(**{"hidden_size": 768, "num_hidden_layers": 104, **overrides})

    @classmethod
    def large(cls, **overrides: Any) -> AveyConfig:
        """Return the paper's model of 1.5 B parameters."""
        return cls(**{"hidden_size": 2048, "num_hidden_layers": 48, **overrides})

    @classmethod
    def mini(cls, **overrides: Any) -> AveyConfig:
        """Return a shape that trains on a CPU."""
        sizes = {"hidden_size": 128, "num_hidden_layers": 4, "split_size": 32, "num_retrieved": 3}
        return cls(**{**sizes, **overrides})

    @classmethod
    def from_released(
        cls,
        *,
        vocab_size: int = 50304,
        d_embed: int = 768,
        n_blocks: int = 26,
        expansion_factor: int = 4,
        chunk_size: int = 64,
        k: int = 8,
        context_proportion: float = 0.5,
        **_fields_of_transformers: Any,
    ) -> AveyConfig:
        """Return the configuration that the fields of the authors' `config.json` mean."""
        return cls(
            vocab_size=vocab_size,
            hidden_size=d_embed,
            num_hidden_layers=n_blocks,
            split_size=chunk_size,
            num_retrieved=k - 1,
            expansion_factor=expansion_factor,
            tail_share=context_proportion,
            weight_norm="first",
        )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from the fields of a `config.json`, ours or the authors'.

        Raises:
            ConfigError: a value is out of range or not one of its choices.
            ModelError: the configuration is that of another kind of model.
        """
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ModelError(
                f"config.json: model_type is {kind!r}, only {cls.model_type!r} is an Avey language"
                " model; name a folder that holds one"
            )
        if "n_blocks" in config_dict:
            config_dict = cls.from_released(**config_dict).to_dict()
        return super().from_dict(config_dict, **kwargs)


class FunnelAveyBConfig(AveyBConfig):
    """Configuration of an Avey-B encoder that pools tokens behind some of its layers.

    It has the fields of `AveyBConfig`, and these:

    Funnel:
        funnel_after: How many layers see every token; behind them neighbouring tokens of a split
            are pooled.
        funnel_factor: How many tokens become one row; it divides `split_size`; 1 pools nothing.
        funnel_pool: "max" (the Funnel paper's) | "mean".
        funnel_recovery: How the tokens of a row get different outputs again. With t the row's
            vector and h the outputs of the layers in front of the funnel: "sum_first", t + h_1 |
            "sum_last", t + h_last | "sum_max", t + max h | "sum_mean", t + mean h |
            "average_last", (t + h_last) / 2 | "max_last", max(t, h_last). None: each token has the
            vector of its row, as vectors of texts and passages need it.

    Raises:
        ConfigError: a value is out of range or not one of its choices.
    """

    model_type = "avey-b-funnel"

    funnel_after: int = 1
    funnel_factor: int = 2
    funnel_pool: str = "mean"
    funnel_recovery: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Check every field."""
        super().__post_init__(**kwargs)
        if (
            type(self.funnel_after) is not int
            or not 1 <= self.funnel_after < self.num_hidden_layers
        ):
            raise ConfigError(
                f"FunnelAveyBConfig.funnel_after is {self.funnel_after!r} and num_hidden_layers"
                f" {self.num_hidden_layers}; at least one layer must stand on each side of the"
                " funnel"
            )
        factor = self.funnel_factor
        if type(factor) is not int or factor < 1 or self.split_size % factor:
            raise ConfigError(
                f"FunnelAveyBConfig.funnel_factor is {factor!r} and split_size {self.split_size};"
                " the factor must be a whole number of 1 or more that divides the split"
            )
        if self.funnel_pool not in POOLS:
            raise ConfigError(
                f"FunnelAveyBConfig.funnel_pool is {self.funnel_pool!r}; choose one of"
                f" {', '.join(POOLS)}"
            )
        if self.funnel_recovery not in (None, *RECOVERIES):
            raise ConfigError(
                f"FunnelAveyBConfig.funnel_recovery is {self.funnel_recovery!r}; choose one of"
                f" {', '.join(RECOVERIES)}, or None"
            )
