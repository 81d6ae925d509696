"""`torch.compile` of the layers: the same outputs, and one graph a kind of layer whatever the
lengths.
"""

from __future__ import annotations

import pytest
import torch

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBModel

SIZES = {"vocab_size": 200, "hidden_size": 16, "num_hidden_layers": 4, "split_size": 16}


@pytest.mark.parametrize(
    "preset", [AveyBConfig.paper_base, AveyBConfig.released_base], ids=["paper", "released"]
)
def test_no_recompilation_per_length(preset) -> None:  # type: ignore[no-untyped-def]
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = AveyBModel(preset(**SIZES)).eval()
    compiled = AveyBModel(plain.config).eval()
    compiled.load_state_dict(plain.state_dict())
    graphs = []

    def count(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    for layer in compiled.layers:
        layer.compile(dynamic=True, backend=count)
    with torch.inference_mode():
        for n in (40, 5, 16, 100, 300, 7, 3, 64, 33):
            ids = torch.randint(0, 200, (2, n))
            got = compiled(ids).last_hidden_state
            torch.testing.assert_close(got, plain(ids).last_hidden_state, atol=1e-6, rtol=0)
    # Not one for each of nine lengths but a static and a dynamic one, each once more for splits of
    # a single token (a shape that the compiler takes as a constant), and the static one once more
    # for full splits: `across` multiplies by a detached matrix, whose torch.matmul asks for it
    # (TORCH_LOGS=recompiles shows its guard 16 != x.size()[1]).
    assert 2 <= len(graphs) <= 5
