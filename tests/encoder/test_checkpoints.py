"""Only a checkpoint that fills a model is loaded; everything else is refused in one line, never
started at random.
"""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    ModernBertConfig,
)
from transformers import ModernBertModel as TheirModel

from aveyb_retrieval.encoder.config import RELEASED, AveyBConfig
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.heads import (
    AveyBForSequenceClassification,
    AveyBForTokenClassification,
)
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ModelError
from aveyb_retrieval.family.avey import AveyForCausalLM
from aveyb_retrieval.family.funnel import FunnelAveyBModel
from tests.data.make_released import authors_order
from tests.encoder.models import small_config, small_model
from tests.encoder.onnx.forms import store_table_in_int8

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOADERS: dict[str, Callable[[Path], Any]] = {
    "AveyBModel": AveyBModel.from_pretrained,
    "AveyBForMaskedLM": AveyBForMaskedLM.from_pretrained,
    "AutoModel": AutoModel.from_pretrained,
    "Embedder": Embedder.load,
}
BYTES = [bytes([i]) for i in range(256)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = AveyBTokenizer.from_ranks(BYTES)
    folder = tmp_path_factory.mktemp("made")
    sentence_transformer(small_model("paper", vocab_size=tokenizer.vocab_size), tokenizer, folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A complete model folder, for a test to spoil."""
    return shutil.copytree(made, tmp_path / "model")


@pytest.fixture(params=LOADERS)
def refusal(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    def message(folder: Path) -> str:
        with pytest.raises(ModelError) as caught:
            LOADERS[request.param](folder)
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)
        return str(caught.value)

    return message


def change_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_lost_parameter(folder: Path, refusal: Callable[[Path], str]) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("layers.1.fuser.bias"))
    assert "lacks 1 parameter, first" in refusal(folder)


def test_a_layer_too_many(folder: Path, refusal: Callable[[Path], str]) -> None:
    change_config(folder, num_hidden_layers=3, layer_pattern=["static", "dynamic", "static"])
    assert "holds 6 encoder parameters with no place in the model, first" in refusal(folder)


def test_another_vocabulary_in_the_configuration(
    folder: Path, refusal: Callable[[Path], str]
) -> None:
    change_config(folder, vocab_size=300)
    assert (
        "embed.weight has shape (261, 32) in the checkpoint, config.json says (300, 32)"
        in refusal(folder)
    )


@pytest.mark.parametrize("kept", [0, 5, 400, -1])
def test_a_file_cut_short(folder: Path, refusal: Callable[[Path], str], kept: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert "damaged or cut short" in refusal(folder)


def test_no_weights(folder: Path, refusal: Callable[[Path], str]) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in (message := refusal(folder))
    assert "reads safetensors only" in message
    (folder / "pytorch_model.bin").write_bytes(b"never unpickled")
    assert "reads safetensors only" in refusal(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"no config\.json"),
        *((text, r"config\.json(: model_type is None| is not JSON)") for text in ("{", "[]", "{}")),
    ],
)
@pytest.mark.parametrize("loader", ["AveyBModel", "AveyBForMaskedLM", "Embedder"])
def test_a_folder_that_holds_no_model(
    tmp_path: Path, loader: str, config: str | None, message: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError, match=message):
        LOADERS[loader](tmp_path)


SIZES = {"vocab_size": 261, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4}


@pytest.mark.parametrize("loader", ["AveyBModel", "AveyBForMaskedLM", "Embedder"])
@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_another_architecture(tmp_path: Path, loader: str, kind: str) -> None:
    torch.manual_seed(0)
    if kind == "bert":
        BertModel(BertConfig(**SIZES, num_attention_heads=2)).save_pretrained(tmp_path)
    else:
        special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
        TheirModel(ModernBertConfig(**SIZES, **special, num_attention_heads=2)).save_pretrained(
            tmp_path
        )
    AveyBTokenizer.from_ranks(BYTES).save(tmp_path)
    with pytest.raises(ModelError, match=f"model_type is '{kind}', only 'avey-b' can be loaded"):
        LOADERS[loader](tmp_path)


def test_another_configuration_does_not_make_it_ours(tmp_path: Path) -> None:
    BertModel(BertConfig(**SIZES, num_attention_heads=2)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="model_type is 'bert'"):
        AveyBModel.from_pretrained(tmp_path, config=small_config("paper"))


@pytest.mark.parametrize("merges", [[], [b"a" + bytes([i]) for i in range(200)]])
def test_a_tokenizer_of_another_model(folder: Path, tmp_path: Path, merges: list[bytes]) -> None:
    rows = 261 if merges else 261 + 200
    sentence_transformer(
        small_model("paper", vocab_size=rows),
        AveyBTokenizer.from_ranks(
            BYTES + ([b"b" + bytes([i]) for i in range(200)] if not merges else [])
        ),
        folder,
    )
    AveyBTokenizer.from_ranks(BYTES + merges).save(folder)
    with pytest.raises(
        ModelError, match=f"ids, the model {rows} embeddings: they belong to different models"
    ):
        Embedder.load(folder)


def test_an_encoder_alone_fills_a_model_whose_head_is_tied(tmp_path: Path) -> None:
    encoder = small_model("paper")
    encoder.save_pretrained(tmp_path / "encoder")
    model, info = AveyBForMaskedLM.from_pretrained(tmp_path / "encoder", output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(model.lm_head.weight, encoder.embed.weight)
    model.save_pretrained(tmp_path / "both")
    again = AveyBModel.from_pretrained(tmp_path / "both")
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), encoder.parameters(), strict=True)
    )
    change_config(tmp_path / "encoder", tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lacks 1 parameter, first 'lm_head.weight'"):
        AveyBForMaskedLM.from_pretrained(tmp_path / "encoder")


def test_loading_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    AveyBForMaskedLM(small_config("paper", tie_word_embeddings=False)).save_pretrained(tmp_path)
    capfd.readouterr()
    AveyBModel.from_pretrained(tmp_path)  # leaves the head behind
    assert "lm_head" not in "".join(capfd.readouterr())


def test_auto_classes_read_the_authors_format(tmp_path: Path) -> None:
    fields = {
        "vocab_size": 97,
        "d_embed": 32,
        "n_layers": 4,
        "chunk_size": 16,
        "k": 3,
        "eps": 1e-12,
    }
    model = AveyBModel(AveyBConfig.from_released(**fields)).eval()  # type: ignore[arg-type]
    released = authors_order({name: p.detach() for name, p in model.named_parameters()})
    save_file(
        {f"base_avey_model.{name}": tensor for name, tensor in released.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "avey-b", **fields}))
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.hidden_size, config.split_size) == (32, 16)
    assert {name: getattr(config, name) for name in RELEASED} == RELEASED
    ids = torch.arange(40)[None]
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        for loaded in (
            AutoModel.from_pretrained(tmp_path),
            AutoModelForMaskedLM.from_pretrained(tmp_path).model,
        ):
            torch.testing.assert_close(loaded(ids).last_hidden_state, expected, atol=0, rtol=0)
    masked = AveyBModel.from_pretrained(tmp_path, config=AveyBConfig.from_released(**fields))  # type: ignore[arg-type]
    assert masked.config.tail == "zero_slots"


def test_loading_says_nothing() -> None:
    code = "from aveyb_retrieval import Embedder; Embedder.load()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("loader", LOADERS)
def test_a_table_in_int8_is_read_as_its_rows_times_their_scales(loader: str, folder: Path) -> None:
    store_table_in_int8(folder)
    stored = load_file(folder / "model.safetensors")
    assert stored["embed.weight"].dtype == torch.int8
    loaded = LOADERS[loader](folder)
    model = loaded.model if loader == "Embedder" else loaded.base_model
    wanted = stored["embed.weight"].float() * stored["embed.scale"]
    torch.testing.assert_close(model.embed.weight.detach(), wanted, rtol=0, atol=0)


def test_a_table_in_int8_is_near_the_one_that_it_was_made_of(folder: Path) -> None:
    before = AveyBModel.from_pretrained(folder).embed.weight.detach()
    store_table_in_int8(folder)
    after = AveyBModel.from_pretrained(folder).embed.weight.detach()
    assert ((after - before).abs() <= before.abs().amax(1, keepdim=True) / 254 * 1.001).all()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("scale", [None, torch.ones(3, 1)])
def test_a_table_in_int8_without_its_scales_is_refused(
    loader: str, scale: torch.Tensor | None, folder: Path
) -> None:
    store_table_in_int8(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("embed.scale")
    save_file(
        tensors if scale is None else {**tensors, "embed.scale": scale},
        path,
        metadata={"format": "pt"},
    )
    with pytest.raises(
        ModelError, match=r"model.safetensors: embed.weight is int8 and has no embed.scale"
    ):
        LOADERS[loader](folder)


def test_tensors_and_a_name_at_once_are_refused_as_transformers_does(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    with pytest.raises(
        ValueError, match="`state_dict` cannot be passed together with a model name"
    ):
        AveyBModel.from_pretrained(folder, state_dict=tensors)


@pytest.mark.parametrize("name", ["from_pretrained", "from_released", "from_encoder"])
@pytest.mark.parametrize(
    "cls",
    [
        AveyBModel,
        AveyBForMaskedLM,
        AveyBForSequenceClassification,
        AveyBForTokenClassification,
        FunnelAveyBModel,
        AveyForCausalLM,
    ],
)
def test_a_type_checker_knows_what_is_loaded(cls: type, name: str) -> None:
    load = getattr(cls, name, None)
    if load is None:
        pytest.skip(f"{cls.__name__} has no {name}")
    assert inspect.signature(load).return_annotation == "Self"
