"""Make the small fixtures that pin the released variant of Avey-B: `python -m
tests.data.make_released`.

The values are those of this package's modules in float64. Our modules were first shown to meet the
outputs, loss and gradients of the authors' released modules (`tests/encoder/test_released.py`, the
larger fixtures beside a checkout), so that a clone without those fixtures still notices any change.
Make them again only while the larger ones pass.

Each file holds `weights.*` under the released names, `case.*.input_ids` with
`case.*.last_hidden_state`, and `mlm.input_ids`, `mlm.labels`, `mlm.loss`, `mlm.grad.*`; its
metadata hold the released configuration as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM

FOLDER = Path(__file__).parent
SHAPES = [(1, 1), (1, 5), (1, 16), (1, 17), (1, 50), (2, 48), (2, 101), (3, 96)]
CONFIGS = {
    "small": {
        "vocab_size": 61,
        "d_embed": 16,
        "n_layers": 4,
        "chunk_size": 16,
        "k": 3,
        "eps": 1e-12,
    },
    "one_retrieved": {
        "vocab_size": 53,
        "d_embed": 12,
        "n_layers": 3,
        "chunk_size": 24,
        "k": 1,
        "eps": 1e-6,
    },
}


def random_model(config: AveyBConfig, generator: torch.Generator) -> AveyBForMaskedLM:
    """Return a model none of whose parameters has its neutral initial value, in float64."""
    model = AveyBForMaskedLM(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if name == "embed.weight":
                parameter.copy_(noise)
            elif parameter.dim() == 2:
                parameter.copy_(noise * (2 / sum(parameter.shape)) ** 0.5)
            else:
                parameter.add_(0.2 * noise)
            parameter.copy_(parameter.float())  # what is stored is what was computed with
    return model


def authors_order(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of an encoder with rows and columns in the authors' order, the opposite of
    `released_tensors`.
    """
    found = dict(tensors)
    for name in (name for name in tensors if name.endswith(".fuser.weight")):
        layer, inner = name.removesuffix("fuser.weight"), tensors[name].shape[1]
        mixed = len(tensors[f"{layer}enricher.weight"]) - inner
        found[name] = tensors[name].roll(mixed, dims=1)
        for part in (f"{layer}enricher.weight", f"{layer}enricher.bias"):
            bypass, gate, context = tensors[part].tensor_split((inner - mixed, inner))
            found[part] = torch.cat((context, gate, bypass))
    return found


def released_fixture(config: AveyBConfig, seed: int) -> dict[str, torch.Tensor]:
    """Return weights, outputs for every shape, and the loss and gradients of one masked batch."""
    generator = torch.Generator().manual_seed(seed)
    model = random_model(config, generator)
    weights = {name: p.detach() for name, p in model.model.named_parameters()}
    tensors = {f"weights.{name}": tensor for name, tensor in authors_order(weights).items()}
    for batch, length in SHAPES:
        ids = torch.randint(0, config.vocab_size, (batch, length), generator=generator)
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state
        tensors |= {
            f"case.b{batch}_t{length}.input_ids": ids,
            f"case.b{batch}_t{length}.last_hidden_state": hidden,
        }
    labels = ids.where(torch.rand(ids.shape, generator=generator) < 0.3, -100)
    loss = model(ids, labels=labels).loss
    loss.backward()
    tensors |= {"mlm.input_ids": ids.clone(), "mlm.labels": labels, "mlm.loss": loss.detach()[None]}
    gradients = {name: p.grad for name, p in model.model.named_parameters()}
    tensors |= {f"mlm.grad.{name}": tensor for name, tensor in authors_order(gradients).items()}
    return {
        name: t.float().contiguous() if t.is_floating_point() else t for name, t in tensors.items()
    }


def main() -> None:
    """Write one file per configuration beside this script."""
    for seed, (name, fields) in enumerate(CONFIGS.items()):
        path = FOLDER / f"released_{name}.safetensors"
        tensors = released_fixture(AveyBConfig.from_released(**fields), seed)
        save_file(tensors, path, metadata={"config": json.dumps(fields)})
        print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
