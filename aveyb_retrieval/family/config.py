"""Configurations of the family's models. Only what a configuration needs is imported here.

transformers asks for them as soon as its own list of configurations is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from aveyb_retrieval.encoder.config import AveyBConfig, SettingsConfig
from aveyb_retrieval.encoder.settings import (
    Amount,
    Count,
    Depth,
    EncoderSettings,
    Factor,
    Rows,
    Settings,
    Share,
    Width,
)
from aveyb_retrieval.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from typing import Self

Recovery = Literal["sum_first", "sum_last", "sum_max", "sum_mean", "average_last", "max_last"]
RECOVERIES: tuple[str, ...] = get_args(Recovery)


class AveySettings(Settings, frozen=True, kw_only=True):
    """The fields of an Avey language model; `AveyConfig` says what each of them is."""

    vocab_size: Rows = 50304
    hidden_size: Width = 768
    num_hidden_layers: Depth = 26
    split_size: Width = 64
    num_retrieved: Count = 7
    expansion_factor: Factor = 4
    tail_share: Share = 0.5
    weight_norm: Literal["max", "first"] = "max"
    norm_eps: Amount = 1e-10
    similarity_eps: Amount = 1e-8
    initializer_range: Amount = 0.02

    def completed(self, owner: str) -> Self:
        """Check the tail; see the base class."""
        if not 0 < self.tail_size <= self.enriched_size:
            raise ConfigError(
                f"{owner}.tail_share is {self.tail_share}; it must leave a tail of 2 or more of"
                f" {self.enriched_size} columns"
            )
        return self

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


class AveyConfig(SettingsConfig):
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
    settings_type: ClassVar[type[Settings]] = AveySettings

    tie_word_embeddings: bool = False  # the embedding itself is the output layer: nothing to tie
    use_cache: bool = True

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
        fields: dict[str, Any] = {
            "vocab_size": vocab_size,
            "hidden_size": d_embed,
            "num_hidden_layers": n_blocks,
            "split_size": chunk_size,
            "num_retrieved": k - 1,
            "expansion_factor": expansion_factor,
            "tail_share": context_proportion,
            "weight_norm": "first",
        }
        return cls(**fields)

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


class FunnelSettings(EncoderSettings, frozen=True, kw_only=True):
    """The fields of an encoder with a funnel; `FunnelAveyBConfig` says what each of them is."""

    funnel_after: Depth = 1
    funnel_factor: Width = 2
    funnel_pool: Literal["mean", "max"] = "mean"
    funnel_recovery: Recovery | None = None

    def completed(self, owner: str) -> Self:
        """Check where the funnel is and what it pools; see the base class."""
        if self.funnel_after >= self.num_hidden_layers:
            raise ConfigError(
                f"{owner}.funnel_after is {self.funnel_after} and num_hidden_layers"
                f" {self.num_hidden_layers}; give at least one layer after the funnel"
            )
        if self.split_size % self.funnel_factor:
            raise ConfigError(
                f"{owner}.funnel_factor is {self.funnel_factor} and split_size {self.split_size};"
                " the factor must divide the split"
            )
        return super().completed(owner)


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
    settings_type: ClassVar[type[Settings]] = FunnelSettings
