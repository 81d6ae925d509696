"""The whole model on kernels: loss and the gradient of every parameter equal plain torch's."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM
from aveyb_retrieval.kernels.dispatch import Backend, force_backend

SIZES = {"vocab_size": 120, "hidden_size": 16, "num_hidden_layers": 2, "split_size": 16}


@pytest.mark.parametrize(
    "preset", [AveyBConfig.paper_base, AveyBConfig.released_base], ids=["paper", "released"]
)
def test_loss_and_gradients(preset) -> None:  # type: ignore[no-untyped-def]
    model = AveyBForMaskedLM(preset(**SIZES))
    ids = torch.randint(0, 120, (2, 75))
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0

    def run(backend: Backend) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with force_backend(backend):
            loss = model(ids, mask, labels=ids.masked_fill(mask == 0, -100)).loss
            grads = torch.autograd.grad(loss, list(model.parameters()))
        return loss.detach(), dict(zip(dict(model.named_parameters()), grads, strict=True))

    (got, got_grads), (wanted, wanted_grads) = run("triton"), run("torch")
    assert torch.allclose(got, wanted, rtol=1e-6)
    for name, grad in wanted_grads.items():
        assert float((got_grads[name] - grad).norm()) <= 5e-6 * float(grad.norm()), name
