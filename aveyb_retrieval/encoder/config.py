"""AveyBConfig: the sizes of an Avey-B model, and each choice that the paper and its released code
make differently.

The defaults and `paper_*` follow the text of the paper, `released_*` the authors' code and
checkpoints, `mini` is a small shape for CPUs. One choice is the same everywhere and therefore not a
field: the ranker's scores, choice and weights are float32.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from aveyb_retrieval.encoder.folders import is_released
from aveyb_retrieval.errors import AveyBError, ConfigError, ModelError, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

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

_CHOICES = {
    "enricher_activation": ("gelu", "relu2"),
    "mix_activation": ("none", "relu"),
    "similarity_norm": ("l1", "sum"),
    "weight_norm": ("max", "min"),
    "retrieved_order": ("sequence", "score"),
    "tail": ("masked", "zero_slots"),
    "weight_init": ("normal", "xavier"),
    "static_init": ("xavier", "local"),
}
_LAYERS = ("static", "dynamic")
# least and largest values: far beyond any model, but a damaged file must not ask for endless memory
# or time
_SIZES = {
    "vocab_size": (1, 1 << 24),
    "hidden_size": (1, 1 << 16),
    "num_hidden_layers": (1, 1 << 12),
    "split_size": (1, 1 << 16),
    "num_retrieved": (0, 1 << 10),
    "expansion_factor": (1, 1 << 8),
}
_SWITCHES = ("mix_bias", "learned_residual", "final_norm")
_NUMBERS = ("norm_eps", "similarity_eps", "max_split_weight", "initializer_range", "tail_share")

# Fields that older `config.json` files hold, with the one value that is left of each; they are read
# and not written again.
_FORMER_FIELDS = {
    "compressor_residual": True,
    "ranker_direction": "past",
    "enriched_order": "bypass_gate_mixed",
    "fuser_order": "bypass_context",
    "funnel_after": None,
    "funnel_factor": None,
    "funnel_pool": None,
    "funnel_recovery": None,
}
_FORMER_HEADS = ("answer_form",)  # of a head that such a file may or may not have had

RELEASED: dict[str, Any] = {
    "enricher_activation": "gelu",
    "mix_activation": "none",
    "mix_bias": False,
    "similarity_norm": "l1",
    "learned_residual": True,
    "final_norm": False,
    "weight_norm": "min",
    "weight_init": "xavier",
    "retrieved_order": "score",
    "tail": "zero_slots",
}


class AveyBConfig(transformers.PreTrainedConfig):
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
        layer_pattern: "static" or "dynamic" for each layer; None alternates, static first.

    Choices:
        enricher_activation: "relu2" in the paper | "gelu" in the released code; so below.
        mix_activation: Sigma after mixing, "relu" | "none".
        mix_bias: A learned bias per token position after mixing, True | False (optional in the
            paper).
        similarity_norm: Of the rows of a dynamic layer, "sum", S / (sum S + eps) | "l1",
            S / max(sum abs S, 1e-12).
        learned_residual: The residual is scaled by a learned scalar per layer, False | True.
        final_norm: An RMSNorm after the last layer, True (as in Avey, appendix H) | False.
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

    model_type = "avey-b"

    vocab_size: int = 50304
    hidden_size: int = 768
    num_hidden_layers: int = 30
    split_size: int = 256
    num_retrieved: int = 3
    expansion_factor: int = 4
    tail_share: float = 0.5
    layer_pattern: list[str] | None = None
    enricher_activation: str = "relu2"
    mix_activation: str = "relu"
    mix_bias: bool = True
    similarity_norm: str = "sum"
    learned_residual: bool = False
    final_norm: bool = True
    weight_norm: str = "max"
    retrieved_order: str = "sequence"
    tail: str = "masked"
    norm_eps: float = 1e-12
    similarity_eps: float = 1e-12
    max_split_weight: float = 1e4
    weight_init: str = "normal"
    initializer_range: float = 0.02
    static_init: str = "xavier"
    tie_word_embeddings: bool = True
    max_position_embeddings: int = -1  # sentence-transformers reads -1 as "no limit"

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in `layer_pattern` and check every field."""
        self._check_types()
        if self.layer_pattern is None:
            self.layer_pattern = [
                "dynamic" if i % 2 else "static" for i in range(self.num_hidden_layers)
            ]
        super().__post_init__(**self._without_former_fields(kwargs))
        self._check()

    def _without_former_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that are not declared, without those that older files hold.

        Raises:
            ConfigError: one of these says that the model computes what this one does not.
        """
        former = {**_FORMER_FIELDS, "compressor": "linear" if self.num_retrieved else "none"}
        for name, own in former.items():
            if name in fields and fields[name] not in (None, own):
                raise ConfigError(
                    f"AveyBConfig.{name} is {fields[name]!r}; models of this package have {own!r}"
                    " alone"
                )
        return {
            name: value
            for name, value in fields.items()
            if name not in former and name not in _FORMER_HEADS
        }

    def _check_types(self) -> None:
        for name, (least, most) in _SIZES.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                shown = (
                    value
                    if not isinstance(value, int) or value.bit_length() < 64
                    else "of too many digits"
                )
                raise ConfigError(
                    f"AveyBConfig.{name} is {shown!r}; it must be at least {least}, at most {most}"
                )
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise ConfigError(
                    f"AveyBConfig.{name} is {getattr(self, name)!r}; it must be True or False"
                )
        for name in _NUMBERS:
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                raise ConfigError(
                    f"AveyBConfig.{name} is {value!r}; it must be a number of 0 or more"
                )
        if self.layer_pattern is not None and not isinstance(self.layer_pattern, list):
            raise ConfigError(
                f"AveyBConfig.layer_pattern is {self.layer_pattern!r}; it must be a list"
            )

    def _check(self) -> None:
        # 0.7 x 40 is not quite 28
        tail = round(self.tail_share * self.expansion_factor * self.hidden_size, 6)
        if not 0 < self.tail_share < 1 or tail % 2:
            raise ConfigError(
                f"AveyBConfig.tail_share is {self.tail_share}: of expansion_factor"
                f" {self.expansion_factor} x hidden_size {self.hidden_size} that is a tail of"
                f" {tail:g}; it must be even, above 0 and less than all"
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in list(choices):
                raise ConfigError(
                    f"AveyBConfig.{name} is {getattr(self, name)!r}; choose one of"
                    f" {', '.join(choices)}"
                )
        if self.enricher_activation == "gelu" and self.similarity_norm == "sum":
            raise ConfigError(
                "AveyBConfig.similarity_norm is 'sum' with enricher_activation 'gelu': similarities"
                " can be negative then, and a row's sum zero; choose 'l1', or 'relu2'"
            )
        pattern = self.layer_pattern or []
        if len(pattern) != self.num_hidden_layers or any(layer not in _LAYERS for layer in pattern):
            raise ConfigError(
                f"AveyBConfig.layer_pattern has {len(pattern)} entries"
                f" {sorted(set(map(str, pattern)))} for num_hidden_layers {self.num_hidden_layers};"
                f" give one of {', '.join(_LAYERS)} for each layer"
            )

    @property
    def mixed_size(self) -> int:
        """m, the width of the part that is mixed; the gate is as wide, the bypassed head takes the
        rest.
        """
        return round(self.tail_share * self.expansion_factor * self.hidden_size) // 2

    @property
    def bypass_size(self) -> int:
        """The width of the bypassed head."""
        return self.expansion_factor * self.hidden_size - 2 * self.mixed_size

    @classmethod
    def read_released(cls, settings: Mapping[str, Any], where: str) -> AveyBConfig:
        """Return the configuration that a `config.json` in the authors' format means; `where` names
        the file.
        """
        names = inspect.signature(cls.from_released).parameters
        if missing := [name for name in names if name not in settings]:
            raise ModelError(
                f"{where}: a released Avey-B configuration must have {', '.join(names)}; lacks"
                f" {missing}"
            )
        return cls.from_released(**{name: settings[name] for name in names})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build from the fields of a `config.json`, ours or the authors'; `kwargs` are those of
        transformers.

        Raises:
            ConfigError: a value is out of range, not one of its choices, or of another type.
            ModelError: a released configuration lacks a field.
        """
        try:
            if is_released(config_dict):
                config_dict = cls.read_released(config_dict, "config.json").to_dict()
            return super().from_dict(config_dict, **kwargs)
        except AveyBError:
            raise
        except LOADING_ERRORS as error:  # of transformers, about the fields that it adds
            raise ConfigError(
                f"config.json: {type(error).__name__} ({first_line(error)})"
            ) from error

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
        return cls(
            **RELEASED,
            vocab_size=vocab_size,
            hidden_size=d_embed,
            num_hidden_layers=n_layers,
            split_size=chunk_size,
            num_retrieved=k,
            norm_eps=eps,
            similarity_eps=eps,
        )
