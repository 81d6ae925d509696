"""The configuration of a model, once: a frozen structure whose types are the ranges of its fields.

The network, the ranker and an ONNX form read `EncoderSettings`. `AveyBConfig` is transformers'
class around it, and an ONNX file has it as JSON in its metadata. Nothing of torch or transformers
is imported here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from aveyb_retrieval.encoder.model_folders import is_released, read_object
from aveyb_retrieval.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

MODEL_TYPE = "avey-b"

# Bounds far beyond any model: a damaged file must not ask for endless memory or time.
Rows = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Width = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
Depth = Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]
Factor = Annotated[int, msgspec.Meta(ge=1, le=1 << 8)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 10)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

# Choices that the paper compares and the encoder does not have, and who has them.
_CHOICES_OF_OTHERS = {
    "ranker_direction": "ReferenceAveyB",
    "compressor": "ReferenceAveyB",
    "coupled": "ReferenceAveyB",
    "funnel_after": "FunnelAveyBConfig",
    "funnel_factor": "FunnelAveyBConfig",
    "funnel_pool": "FunnelAveyBConfig",
    "funnel_recovery": "FunnelAveyBConfig",
}
_FIELD = re.compile(r"`\$\.(\w+)")
_MOST_DIGITS = 64  # bits of a number that a message shows


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a model's configuration, and how they are read."""

    @classmethod
    def read(cls, fields: Mapping[str, Any], owner: str) -> Self:
        """Return the settings that fields mean, after all checks; other fields are left out.

        Args:
            fields: those that are not there or None have their defaults.
            owner: the class or file that has the fields, for messages.

        Raises:
            ConfigError: a value is of another type, out of range or not one of its choices, or two
                contradict each other.
        """
        given = {
            name: fields[name] for name in cls.__struct_fields__ if fields.get(name) is not None
        }
        try:
            settings = msgspec.convert(given, cls, strict=True)
        except msgspec.ValidationError as error:
            match = _FIELD.search(str(error))
            if match is None:
                raise ConfigError(f"{owner}: {error}") from error
            name = match[1]
            raise ConfigError(
                f"{owner}.{name} is {_shown(given[name])}; {_requirement_of(cls, name)}"
            ) from error
        return settings.completed(owner)

    def completed(self, owner: str) -> Self:
        """Return the settings with what follows from other fields.

        Raises:
            ConfigError: two fields contradict each other.
        """
        return self

    def fields(self) -> dict[str, Any]:
        """Return all fields as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in msgspec.structs.asdict(self).items()
        }


class EncoderSettings(Settings, frozen=True, kw_only=True):
    """The fields of an Avey-B encoder; `AveyBConfig` says what each of them is."""

    vocab_size: Rows = 50304
    hidden_size: Width = 768
    num_hidden_layers: Depth = 30
    split_size: Width = 256
    num_retrieved: Count = 3
    expansion_factor: Factor = 4
    tail_share: Share = 0.5
    layer_pattern: tuple[Literal["static", "dynamic"], ...] = ()
    enricher_activation: Literal["gelu", "relu2"] = "relu2"
    mix_activation: Literal["none", "relu"] = "relu"
    mix_bias: bool = True
    similarity_norm: Literal["l1", "sum"] = "sum"
    learned_residual: bool = False
    final_norm: bool = True
    weight_norm: Literal["max", "min"] = "max"
    retrieved_order: Literal["sequence", "score"] = "sequence"
    tail: Literal["masked", "zero_slots"] = "masked"
    norm_eps: Amount = 1e-12
    similarity_eps: Amount = 1e-12
    max_split_weight: Amount = 1e4
    weight_init: Literal["normal", "xavier"] = "normal"
    initializer_range: Amount = 0.02
    static_init: Literal["xavier", "local"] = "xavier"

    def completed(self, owner: str) -> Self:
        """Return the settings with a kind for each layer; see the base class."""
        # 0.7 x 40 is not quite 28
        tail = round(self.tail_share * self.expansion_factor * self.hidden_size, 6)
        if self.tail_share == 1 or tail % 2 or tail == 0:
            raise ConfigError(
                f"{owner}.tail_share is {self.tail_share}: of expansion_factor"
                f" {self.expansion_factor} x hidden_size {self.hidden_size} that is a tail of"
                f" {tail:g}; it must be even, above 0 and less than all"
            )
        if self.enricher_activation == "gelu" and self.similarity_norm == "sum":
            raise ConfigError(
                f"{owner}.similarity_norm is 'sum' with enricher_activation 'gelu': similarities"
                " can be negative then, and a row's sum zero; choose 'l1', or 'relu2'"
            )
        pattern = self.layer_pattern or tuple(
            "dynamic" if i % 2 else "static" for i in range(self.num_hidden_layers)
        )
        if len(pattern) != self.num_hidden_layers:
            raise ConfigError(
                f"{owner}.layer_pattern has {len(pattern)} entries for num_hidden_layers"
                f" {self.num_hidden_layers}; give static or dynamic for each layer"
            )
        return msgspec.structs.replace(self, layer_pattern=pattern)

    @classmethod
    def read(cls, fields: Mapping[str, Any], owner: str) -> Self:
        """Return the settings that fields mean; see `Settings.read`.

        Raises:
            ConfigError: as there, or a choice that the encoder does not have.
        """
        for name, other in _CHOICES_OF_OTHERS.items():
            if name not in cls.__struct_fields__ and fields.get(name) is not None:
                raise ConfigError(
                    f"{owner}.{name} is {fields[name]!r}, a choice that {other} alone has; use"
                    " that, or leave it out"
                )
        return super().read(fields, owner)

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


# What the authors' released code and checkpoints do otherwise than the paper.
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
# The fields of a released `config.json`, and ours; `eps` is that of norms and of similarities.
_RELEASED_NAMES = {
    "vocab_size": "vocab_size",
    "d_embed": "hidden_size",
    "n_layers": "num_hidden_layers",
    "chunk_size": "split_size",
    "k": "num_retrieved",
    "eps": "norm_eps",
}


def released_fields(stored: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return our fields of a configuration in the authors' format; `where` names its file.

    Raises:
        ModelError: a field is missing.
    """
    if missing := [name for name in _RELEASED_NAMES if name not in stored]:
        raise ModelError(
            f"{where}: a released Avey-B configuration must have {', '.join(_RELEASED_NAMES)};"
            f" lacks {missing}"
        )
    own = {ours: stored[theirs] for theirs, ours in _RELEASED_NAMES.items()}
    return {**RELEASED, **own, "similarity_eps": stored["eps"]}


def settings_of(folder: Path) -> EncoderSettings:
    """Return the settings of the encoder in a model folder, ours or the authors'.

    Raises:
        ModelError: there is no configuration, or one of another kind of model, or a field is
            missing, out of range or not one of its choices.
    """
    path = folder / "config.json"
    stored = read_object(path)
    if not path.is_file():
        raise ModelError(f"{folder}: no config.json; name a folder that holds a model")
    check_model_type(stored, path)
    if is_released(stored):
        stored = released_fields(stored, str(path))
    try:
        return EncoderSettings.read(stored, "AveyBConfig")
    except ConfigError as error:
        raise ModelError(f"{folder}: {error}") from error


def check_model_type(stored: Mapping[str, Any], path: Path, wanted: str = MODEL_TYPE) -> None:
    """Raise ModelError where a configuration is of another kind of model; the authors' pass."""
    kind = stored.get("model_type")
    if kind != wanted and not is_released(stored):
        raise ModelError(
            f"{path}: model_type is {kind!r}, only {wanted!r} can be loaded; name an Avey-B model,"
            " for these weights would leave most of one at random"
        )


def _requirement_of(kind: type[Settings], name: str) -> str:
    """Say what the value of a field must be."""
    (info,) = (
        field.type
        for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
        if field.name == name
    )
    return _requirement(info)


def _requirement(info: msgspec.inspect.Type) -> str:
    if isinstance(info, msgspec.inspect.UnionType):
        (info,) = (each for each in info.types if not isinstance(each, msgspec.inspect.NoneType))
    if isinstance(info, msgspec.inspect.LiteralType):
        return f"choose one of {', '.join(map(str, info.values))}"
    if isinstance(info, msgspec.inspect.BoolType):
        return "it must be True or False"
    if isinstance(info, msgspec.inspect.VarTupleType):
        return f"it must be a list; of each entry {_requirement(info.item_type)}"
    if isinstance(info, msgspec.inspect.IntType):
        return f"it must be a whole number of at least {info.ge}, at most {info.le}"
    assert isinstance(info, msgspec.inspect.FloatType)
    least = f"above {info.gt:g}" if info.ge is None else f"of {info.ge:g} or more"
    most = "" if info.le is None else f", at most {info.le:g}"
    return f"it must be a number {least}{most}"


def _shown(value: Any) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, int) and value.bit_length() >= _MOST_DIGITS:
        return "a number of too many digits"
    return repr(value)
