"""The context written over the gate, and the fuser as one product, against the layer as it is."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.inference import JoinedLayer
from aveyb_retrieval.encoder.layers import AveyBLayer
from aveyb_retrieval.kernels.dispatch import Backend, force_backend

PRESETS = {"paper": AveyBConfig.paper_base, "released": AveyBConfig.released_base}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
@torch.no_grad()
def test_a_joined_layer_gives_what_the_layer_gives(preset: str, kind: str, backend: Backend) -> None:
    layer = AveyBLayer(PRESETS[preset](vocab_size=50, hidden_size=16, num_hidden_layers=2, split_size=32), kind)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert JoinedLayer.possible(layer, torch.float32)
    joined = JoinedLayer(layer)
    for lengths in (None, torch.tensor([20, 3, 17])):
        x = torch.randn(3, 20, 16)
        wanted = layer(x, lengths)
        with force_backend(backend):
            got = joined(x, lengths)
        for i, length in enumerate([20] * 3 if lengths is None else lengths.tolist()):
            torch.testing.assert_close(got[i, :length], wanted[i, :length], atol=2e-5, rtol=2e-5)
