"""AveyConfig: Avey, the causal language model that Avey-B descends from."""

from __future__ import annotations

from typing import Any, ClassVar

from aveyb_retrieval.encoder.base_config import BaseConfig
from aveyb_retrieval.errors import ConfigError

_POSITIVE = ("vocab_size", "hidden_size", "num_hidden_layers", "split_size", "expansion_factor")
_WEIGHT_NORMS = ("max", "first")


class AveyConfig(BaseConfig):
    """Configuration of an Avey language model.

    Sizes:
        vocab_size: rows of the embedding, which is also the output layer.
        hidden_size: d, the width of a token.
        num_hidden_layers: layers of the neural processor.
        split_size: S, tokens in a full split.
        num_retrieved: k, earlier splits put before each split; a layer sees C = (k + 1) S tokens. The authors' code
            counts the current split, too: its k is one more.
        expansion_factor: the enricher's output is `expansion_factor * d` wide.
        tail_share: the share of it that goes through the contextualizer, half of that mixed, half as gate; the rest
            bypasses it.

    Choices:
        weight_norm: a retrieved split is weighted by its score divided by the highest among the chosen, "max" (paper),
            or by that of the first of them in reading order, "first" (released code).

    Numerics:
        norm_eps: RMSNorm's epsilon.
        similarity_eps: epsilon of the contextualizer's and the ranker's norms.
        max_split_weight: bound on a retrieved split's weight.

    Initialization:
        initializer_range: standard deviation of embedding and linear maps; V starts Xavier normal.

    Raises:
        ConfigError: a value is out of range or not one of its choices.
    """

    model_type = "avey"
    family: ClassVar[str] = "Avey"
    retrieved_order: ClassVar[str] = "sequence"
    enricher_activation: ClassVar[str] = "relu2"
    mix_activation: ClassVar[str] = "none"
    similarity_norm: ClassVar[str] = "none"
    enriched_order: ClassVar[str] = "mixed_gate_bypass"
    fuser_order: ClassVar[str] = "context_bypass"
    mix_bias: ClassVar[bool] = False
    learned_residual: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False

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
    max_split_weight: float = 1e4
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    max_position_embeddings: int = -1  # no limit

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"AveyConfig.{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_retrieved < 0:
            raise ConfigError(f"AveyConfig.num_retrieved is {self.num_retrieved}; it must be 0 or more")
        if self.weight_norm not in _WEIGHT_NORMS:
            raise ConfigError(
                f"AveyConfig.weight_norm is {self.weight_norm!r}; choose one of {', '.join(_WEIGHT_NORMS)}"
            )
        self._check_tail()

    @property
    def context_size(self) -> int:
        """C, the tokens that a layer sees: k retrieved splits and the current one."""
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
        """Return a shape that trains on a CPU: splits of 32 tokens, 3 retrieved, 4 layers of width 128."""
        sizes = {"hidden_size": 128, "num_hidden_layers": 4, "split_size": 32, "num_retrieved": 3}
        return cls(**{**sizes, **overrides})

    @classmethod
    def from_released(
        cls,
        *,
        vocab_size: int,
        d_embed: int,
        n_blocks: int,
        expansion_factor: int,
        chunk_size: int,
        k: int,
        context_proportion: float,
    ) -> AveyConfig:
        """Return the configuration that the fields of a released checkpoint's `config.json` mean; `k` counts itself."""
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
