"""AveyBConfig: the sizes of an Avey-B model, and each choice that the paper and its released code
make differently.

The defaults and `paper_*` follow the text of the paper but for what docs/differences.md lists (the
tail of a short split, norms, a residual, bounded weights), `released_*` the authors' code and
checkpoints, `mini` is a small shape for CPUs. One choice is the same everywhere and therefore not a
field: the ranker's scores, choice and weights are float32.
"""

from __future__ import annotations

from typing import Any, ClassVar

import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from aveyb_retrieval.encoder.model_folders import is_released
from aveyb_retrieval.encoder.settings import (
    MODEL_TYPE,
    RELEASED,
    EncoderSettings,
    Settings,
    released_fields,
)
from aveyb_retrieval.errors import AveyBError, ConfigError, first_line

# what transformers and sentence-transformers raise about damaged folders, for want of errors of
# their own
LOADING_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    RuntimeError,
    MemoryError,
    SafetensorError,
    StrictDataclassError,
)


class SettingsConfig(transformers.PreTrainedConfig):
    """A configuration of transformers around `Settings`: its fields are theirs, and checked.

    Raises:
        ConfigError: a value is out of range or not one of its choices.
    """

    settings_type: ClassVar[type[Settings]]

    def __post_init__(self, **kwargs: Any) -> None:
        """Check every field, and fill in what follows from others."""
        settings = self.settings_type.read(kwargs, type(self).__name__).fields()
        super().__post_init__(
            **{name: value for name, value in kwargs.items() if name not in settings}
        )
        for name, value in settings.items():
            setattr(self, name, value)

    @property
    def settings(self) -> Any:
        """The fields as they are now, checked: what the network reads.

        Reading an attribute of a transformers configuration costs as much as a small tensor
        operation.
        """
        names = self.settings_type.__struct_fields__
        fields = {name: getattr(self, name) for name in names}
        return self.settings_type.read(fields, type(self).__name__)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from the fields of a `config.json`; `kwargs` are those of transformers.

        Raises:
            ConfigError: a value is out of range, not one of its choices, or of another type.
        """
        try:
            return super().from_dict(config_dict, **kwargs)
        except AveyBError:
            raise
        except LOADING_ERRORS as error:  # of transformers, about the fields that it adds
            raise ConfigError(
                f"config.json: {type(error).__name__} ({first_line(error)})"
            ) from error


class AveyBConfig(SettingsConfig):
    """Configuration of an Avey-B encoder.

    Sizes:
        vocab_size: Rows of the embedding.
        hidden_size: d, the width of a token.
        num_hidden_layers: Layers of the neural processor.
        split_size: S, tokens in a full split.
        num_retrieved: k, earlier splits folded into each split (0: none).
        expansion_factor: The enricher's output is `expansion_factor * d` wide.
        tail_share: Which share of it, the tail, goes through the contextualizer. 0.5: half of the
            tail is mixed, half gates; the rest bypasses the contextualizer.
        layer_pattern: "static" or "dynamic" for each layer; `()` alternates, static first.

    Choices:
        enricher_activation: "relu2" in the paper | "gelu" in the released code; so below.
        mix_activation: Sigma after mixing, "relu" | "none".
        mix_bias: A learned bias per token position after mixing, True | False (optional in the
            paper).
        similarity_norm: Of the rows of a dynamic layer, "sum", S / (sum S + eps) | "l1",
            S / max(sum abs S, 1e-12).
        learned_residual: The residual is scaled by a learned scalar per layer, False | True.
        final_norm: An RMSNorm after the last layer, True (as in appendix H of Avey) | False.
        weight_norm: A retrieved split is weighted by score / highest | score / lowest among the
            chosen.
        retrieved_order: "sequence" | "score" (highest first); missing splits are zeros on the left
            in both.
        tail: "masked", only valid tokens exist | "zero_slots", a short last split is filled up
            with zero embeddings that take part in every layer.

    Numerics:
        norm_eps: RMSNorm's epsilon.
        similarity_eps: Epsilon of "sum" and of the ranker's norms.
        max_split_weight: Bound on the size of a retrieved split's weight. A score over one that
            nears zero grows without bound; the score ratios of trained models stay far below it.

    Initialization:
        weight_init: Embeddings and linear maps start "normal" | "xavier" normal (the paper gives
            none); the compressor starts Xavier normal in any case.
        initializer_range: The standard deviation of "normal".
        static_init: The static matrices start "xavier" normal, as in the released code, or
            "local": near tokens weigh more than distant ones, which masked-language modelling
            otherwise has to learn for every position of a split (`local_matrix`).

    Raises:
        ConfigError: a value is out of range or not one of its choices.
    """

    model_type = MODEL_TYPE
    settings_type: ClassVar[type[Settings]] = EncoderSettings

    tie_word_embeddings: bool = True
    max_position_embeddings: int = -1  # sentence-transformers reads -1 as "no limit"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from the fields of a `config.json`, ours or the authors'; `kwargs` are those of
        transformers.

        Raises:
            ConfigError: a value is out of range, not one of its choices, or of another type.
            ModelError: a released configuration lacks a field.
        """
        if is_released(config_dict):
            config_dict = released_fields(config_dict, "config.json")
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def paper_base(cls, **overrides: Any) -> AveyBConfig:
        """Return the paper's base model: 164 M parameters, p50k_base vocabulary."""
        return cls(
            **{"vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 30, **overrides}
        )

    @classmethod
    def paper_large(cls, **overrides: Any) -> AveyBConfig:
        """Return the paper's large model: 391 M parameters.

        The paper gives neither depth nor width; the number of parameters leaves 46 layers of width
        1,024.
        """
        return cls(
            **{"vocab_size": 50304, "hidden_size": 1024, "num_hidden_layers": 46, **overrides}
        )

    @classmethod
    def released_base(cls, **overrides: Any) -> AveyBConfig:
        """Return the configuration of the authors' released base checkpoints."""
        return cls(
            **{
                **RELEASED,
                "vocab_size": 50368,
                "hidden_size": 768,
                "num_hidden_layers": 30,
                **overrides,
            }
        )

    @classmethod
    def mini(cls, **overrides: Any) -> AveyBConfig:
        """Return a small shape for CPUs: with a vocabulary of 23,552 rows, float16 weights stay
        under 16 MiB.

        Without a final norm, the length of a token's vector is its weight in the mean over a text.
        """
        sizes = {
            "vocab_size": 16384,
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "initializer_range": 0.05,
        }
        return cls(**{**sizes, "final_norm": False, "static_init": "local", **overrides})

    @classmethod
    def from_released(
        cls, *, vocab_size: int, d_embed: int, n_layers: int, chunk_size: int, k: int, eps: float
    ) -> AveyBConfig:
        """Return the configuration that the fields of a released checkpoint's
        `config.json` mean.
        """
        stored = {
            "vocab_size": vocab_size,
            "d_embed": d_embed,
            "n_layers": n_layers,
            "chunk_size": chunk_size,
            "k": k,
            "eps": eps,
        }
        return cls(**released_fields(stored, "released checkpoint"))
