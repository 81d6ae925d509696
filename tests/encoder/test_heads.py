"""The heads: the released modules' logits, losses and gradients; padding, folders, and what is
refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import aveyb_retrieval
from aveyb_retrieval import (
    AveyBForMaskedLM,
    AveyBForSequenceClassification,
    AveyBForTokenClassification,
    AveyBModel,
)
from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.encoder.network.tensors import released_tensors
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.indexes.search.rerank import load_cross_encoder
from tests.encoder.models import small_config
from tests.encoder.onnx.forms import store_table_in_int8
from tests.encoder.test_released import read_fixture
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

RELEASED = {
    "sc1": (AveyBForSequenceClassification, 1),
    "sc3": (AveyBForSequenceClassification, 3),
    "tc5": (AveyBForTokenClassification, 5),
}
HEADS = {
    AveyBForSequenceClassification: AutoModelForSequenceClassification,
    AveyBForTokenClassification: AutoModelForTokenClassification,
}


@pytest.fixture(params=sorted(RELEASED))
def released(request: pytest.FixtureRequest, shared: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model from released weights, and its inputs and outputs."""
    tensors, config = read_fixture(shared / "fixtures" / "avey_b_heads_small.safetensors")
    own = {n.partition(".")[2]: t for n, t in tensors.items() if n.startswith(request.param + ".")}
    stored = {n.removeprefix("weights."): t for n, t in own.items() if n.startswith("weights.")}
    cls, labels = RELEASED[request.param]
    return cls.from_released(stored, **config, num_labels=labels), own


def test_released_logits_are_met(released: tuple[Any, dict[str, torch.Tensor]]) -> None:
    model, tensors = released
    cases = [
        name.removesuffix(".input_ids")
        for name in tensors
        if name.startswith("case") and "input_ids" in name
    ]
    assert len(cases) == 5
    for case in cases:
        with torch.no_grad():
            logits = model(tensors[f"{case}.input_ids"]).logits
        torch.testing.assert_close(logits, tensors[f"{case}.logits"], atol=1e-4, rtol=0, msg=case)


def test_released_loss_and_every_gradient_are_met(
    released: tuple[Any, dict[str, torch.Tensor]],
) -> None:
    model, tensors = released
    loss = model(tensors["loss.input_ids"], labels=tensors["loss.labels"]).loss
    assert abs(loss.item() - tensors["loss.value"].item()) < 1e-5
    loss.backward()
    start = "loss.grad."
    gradients = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
    names = set(gradients)
    gradients |= released_tensors(gradients)
    assert names == {n.removeprefix("model.") for n, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        expected = gradients[name.removeprefix("model.")]
        assert (parameter.grad - expected).norm() <= 1e-4 * expected.norm(), name


@refusals(
    {
        ModelError: {
            r"lacks 1 parameter, first 'classifier\.bias'": lambda stored, config: (
                AveyBForTokenClassification.from_released(
                    {name: tensor for name, tensor in stored.items() if name != "classifier.bias"},
                    **config,
                    num_labels=5,
                )
            ),
            r"classifier.\w+ has shape \(5.* in the checkpoint, .* \(4": lambda stored, config: (
                AveyBForTokenClassification.from_released(stored, **config, num_labels=4)
            ),
        },
    }
)
def test_a_released_checkpoint_that_does_not_fill_the_head_is_refused(
    shared: Path, refused: Refusal
) -> None:
    tensors, config = read_fixture(shared / "fixtures" / "avey_b_heads_small.safetensors")
    start = "tc5.weights."
    weights = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
    refused(weights, config)


def small(cls: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    return cls(small_config("paper", **settings)).eval()


IDS = torch.randint(0, 97, (2, 37), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cls", HEADS)
def test_padding_and_the_batch_change_nothing(cls: Any) -> None:
    model = small(cls)
    mask = torch.ones(2, 45, dtype=torch.int64)
    mask[0, 21:], mask[1, 37:] = 0, 0
    padded = torch.nn.functional.pad(IDS, (0, 8), value=5)
    with torch.no_grad():
        together = model(padded, attention_mask=mask)[0]
        for row, length in enumerate((21, 37)):
            alone = model(IDS[row : row + 1, :length])[0]
            got = together[row : row + 1]
            got = got if cls is AveyBForSequenceClassification else got[:, :length]
            torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cls", HEADS)
def test_saved_and_loaded_by_its_class_and_by_the_auto_class(cls: Any, tmp_path: Path) -> None:
    model = small(cls)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = model(IDS)[0]
        for loaded in (cls.from_pretrained(tmp_path), HEADS[cls].from_pretrained(tmp_path)):
            assert type(loaded) is cls
            assert torch.equal(loaded(IDS)[0], wanted)
    assert torch.equal(AveyBModel.from_pretrained(tmp_path).embed.weight, model.model.embed.weight)


@pytest.mark.parametrize("cls", HEADS)
def test_a_checkpoint_of_another_kind_is_refused_and_can_lend_its_encoder(
    cls: Any, tmp_path: Path
) -> None:
    for other in (AveyBModel, AveyBForMaskedLM, *(other for other in HEADS if other is not cls)):
        saved = small(other)
        saved.save_pretrained(tmp_path / other.__name__)
        if other in HEADS:
            check_another_head_is_refused(cls, tmp_path / other.__name__)
        lent = cls.from_encoder(tmp_path / other.__name__, num_labels=2)
        assert torch.equal(lent.model.embed.weight, saved.base_model.embed.weight)
        assert lent.config.architectures is None


def check_another_head_is_refused(cls: Any, folder: Path) -> None:
    with pytest.raises(
        ModelError, match=rf"saved as {folder.name}, opened as {cls.__name__}.*from_encoder"
    ):
        cls.from_pretrained(folder)


@pytest.mark.parametrize("base", [AveyBModel, AveyBForMaskedLM])
@pytest.mark.parametrize("cls", HEADS)
def test_an_encoder_gets_a_new_head_with_a_warning(
    cls: Any, base: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = small(base)
    encoder.save_pretrained(tmp_path / "base")
    for opener in (cls, HEADS[cls]):
        caplog.clear()
        model, info = opener.from_pretrained(
            tmp_path / "base", num_labels=5, output_loading_info=True
        )
        assert "classifier.weight" in caplog.text and "MISSING" in caplog.text
        assert "classifier.weight" in info["missing_keys"]
        assert type(model) is cls and not model.training
        assert torch.equal(model.model.embed.weight, encoder.base_model.embed.weight)
        assert model(IDS).logits.shape[-1] == model.config.num_labels == 5
        assert (model.classifier.bias == 0).all() and model.classifier.weight.std() > 0
    model.save_pretrained(tmp_path / "headed")
    caplog.clear()
    again = HEADS[cls].from_pretrained(tmp_path / "headed")
    assert "MISSING" not in caplog.text
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_new_head_on_a_table_in_int8_and_on_the_authors_format(tmp_path: Path) -> None:
    encoder = small(AveyBModel)
    encoder.save_pretrained(tmp_path)
    store_table_in_int8(tmp_path)
    model = AveyBForSequenceClassification.from_pretrained(
        tmp_path, num_labels=4, dtype=torch.float32
    )
    assert model(IDS).logits.shape == (2, 4)
    assert model.dtype == torch.float32
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("layers.1.fuser.bias")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 parameter, first 'model\.layers\.1\.fuser"):
        AveyBForSequenceClassification.from_pretrained(tmp_path, num_labels=4)


def load_without_its_weight(folder: Path) -> None:
    small(AveyBForSequenceClassification).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("classifier.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    AveyBForSequenceClassification.from_pretrained(folder)


def score_pairs_by_an_encoder(folder: Path) -> None:
    small(AveyBModel).save_pretrained(folder)
    load_cross_encoder(str(folder), "cpu")


def encode_by_a_head(folder: Path, cls: Any) -> None:
    small(cls).save_pretrained(folder)
    load_encoder(folder)


@refusals(
    {
        ModelError: {
            r"lacks 1 parameter, first 'classifier\.weight'": load_without_its_weight,
            **{
                f"saved as {cls.__name__}, which gives labels or scores and no vectors": partial(
                    encode_by_a_head, cls=cls
                )
                for cls in HEADS
            },
        },
        ConfigError: {
            "saved as AveyBModel, which does not score pairs": score_pairs_by_an_encoder,
        },
    }
)
def test_a_model_is_not_taken_for_another(tmp_path: Path, refused: Refusal) -> None:
    refused(tmp_path)


@pytest.mark.parametrize("cls", HEADS)
def test_heads_take_embeddings_and_give_hidden_states(cls: Any) -> None:
    model = small(cls)
    with torch.no_grad():
        expected = model(IDS, output_hidden_states=True)
        embedded = model(inputs_embeds=model.model.embed(IDS), output_hidden_states=True)
    torch.testing.assert_close(embedded.logits, expected.logits, atol=1e-5, rtol=0)
    assert len(expected.hidden_states) == model.config.num_hidden_layers + 1
    for found, states in zip(embedded.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(found, states, atol=1e-5, rtol=0)
    assert model(IDS).hidden_states is None


def classified(labels: torch.Tensor, **options: str) -> object:
    """The answer of a head of three classes to two texts with these labels."""
    model = small(AveyBForSequenceClassification, num_labels=3)
    model.config.problem_type = options.get("problem_type")
    return model(IDS, labels=labels)


@refusals(
    {
        InputError: {
            "labels hold 3; they must be from 0 to 2": lambda: classified(torch.tensor([0, 3])),
            r"labels have shape \(3,\)": lambda: classified(torch.tensor([0, 1, 2])),
            r"labels have shape \(2,\), logits \(2, 3\)": lambda: classified(
                torch.tensor([0.0, 1.0])
            ),
            "labels hold -1": lambda: small(AveyBForTokenClassification)(
                IDS, labels=torch.full_like(IDS, -1)
            ),
        },
        ConfigError: {
            "problem_type is 'guess'": lambda: classified(
                torch.tensor([0, 1]), problem_type="guess"
            ),
        },
    }
)
def test_labels_that_do_not_fit_are_refused(refused: Refusal) -> None:
    refused()


def test_several_labels_at_once_and_one_number() -> None:
    model = small(AveyBForSequenceClassification, num_labels=3)
    wanted = torch.tensor([[1.0, 0, 1], [0, 0, 0]])
    out = model(IDS, labels=wanted)
    by_hand = torch.nn.functional.binary_cross_entropy(out.logits.sigmoid(), wanted)
    torch.testing.assert_close(out.loss, by_hand)
    one = small(AveyBForSequenceClassification, num_labels=1)
    out = one(IDS, labels=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(
        out.loss, (out.logits[:, 0] - torch.tensor([0.5, 2.0])).square().mean()
    )


def test_public_names() -> None:
    for cls in HEADS:
        assert getattr(aveyb_retrieval, cls.__name__) is cls
