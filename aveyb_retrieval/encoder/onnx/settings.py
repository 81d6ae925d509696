"""What an ONNX file says about itself: whose weights it holds, in which precision, and how the ranker works."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

METADATA = "aveyb"  # the key of the file's metadata
FORMAT = 1
PRECISIONS = ("float32", "int8")
_LARGEST = 1 << 24  # of any size: a damaged file must not ask for endless memory


@dataclass(frozen=True)
class OnnxSettings:
    """The fields of a model that what runs its ONNX form must know.

    precision: "float32" or "int8".
    weights: SHA-256 of the `model.safetensors` that it was made from.
    others: as in `AveyBConfig`.
    """

    precision: str
    weights: str
    vocab_size: int
    hidden_size: int
    split_size: int
    num_retrieved: int
    compressor: str
    tail: str
    ranker_direction: str
    retrieved_order: str
    weight_norm: str
    similarity_eps: float
    max_split_weight: float

    funnel_after = None  # the ONNX form has no funnel

    @property
    def looks_ahead(self) -> bool:
        """Whether a split may retrieve later ones."""
        return self.ranker_direction == "both"

    def to_json(self) -> str:
        """Return the settings as the file's metadata."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def read(cls, metadata: dict[str, str], path: Path) -> OnnxSettings:
        """Read the metadata of a file.

        Raises:
            ModelError: it is of another kind of model, of another format version, or damaged.
        """
        try:
            content = json.loads(metadata[METADATA])
            version = content.pop("format")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{path}: not an ONNX file of an Avey-B model (its metadata has no {METADATA!r}); make one with "
                "aveyb-train export"
            ) from error
        if version != FORMAT:
            raise ModelError(
                f"{path}: format {version!r}, this version of aveyb-retrieval reads {FORMAT}; export the model again"
            )
        types: dict[str, Any] = {"str": str, "int": int, "float": (int, float)}
        wanted = {field.name: types[str(field.type)] for field in fields(cls)}
        wrong = [
            name
            for name, kind in wanted.items()
            if not isinstance(content.get(name), kind) or isinstance(content[name], bool)
        ]
        if wrong or content.keys() != wanted.keys():
            raise ModelError(
                f"{path}: its settings are damaged ({', '.join(wrong) or 'unknown ones'}); export it again"
            )
        found = cls(**content)
        sizes = (found.vocab_size, found.hidden_size, found.split_size, found.num_retrieved + 1)
        if found.precision not in PRECISIONS or not all(0 < size <= _LARGEST for size in sizes):
            raise ModelError(f"{path}: its settings are damaged (precision or a size); export it again")
        return found
