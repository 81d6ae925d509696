"""Presets have the sizes that the paper and the released checkpoints state; contradictions are
refused.
"""

from __future__ import annotations

import ast
import inspect
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.settings import EncoderSettings, settings_of
from aveyb_retrieval.errors import ConfigError, ModelError
from tests.refusals import Refusal, refusals


def count_parameters(config: AveyBConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AveyBModel(config).parameters())


def test_presets_have_the_published_sizes() -> None:
    assert count_parameters(AveyBConfig.paper_base()) == pytest.approx(165e6, rel=0.01)
    assert count_parameters(AveyBConfig.paper_large()) == pytest.approx(391e6, rel=0.01)
    assert count_parameters(AveyBConfig.released_base()) == pytest.approx(165e6, rel=0.01)
    assert count_parameters(AveyBConfig.mini()) * 2 <= 16 * 2**20, (
        "float16 weights must stay within 16 MiB"
    )


def test_layers_alternate_static_first_unless_told_otherwise() -> None:
    assert AveyBConfig(num_hidden_layers=3).layer_pattern == ["static", "dynamic", "static"]
    assert (
        AveyBConfig(num_hidden_layers=2, layer_pattern=["dynamic", "dynamic"]).layer_pattern
        == ["dynamic"] * 2
    )


def test_json_round_trip_keeps_every_field() -> None:
    config = AveyBConfig.released_base(
        split_size=128, layer_pattern=["static"] * 30, max_split_weight=7.0
    )
    assert AveyBConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"tail": "pad"}, "tail is 'pad'.*masked, zero_slots"),
        ({"split_size": 0}, "split_size is 0"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"final_norm": "no"}, "final_norm is 'no'"),
        ({"norm_eps": float("nan")}, "norm_eps is nan"),
        ({"layer_pattern": {"a": 1}}, "layer_pattern is"),
        ({"tail": []}, r"tail is \[\]"),
        ({"num_retrieved": -1}, "num_retrieved is -1"),
        ({"num_hidden_layers": 2, "layer_pattern": ["static"]}, "layer_pattern has 1 entries"),
        ({"num_hidden_layers": 1, "layer_pattern": ["fixed"]}, "'fixed'"),
        ({"hidden_size": 5, "expansion_factor": 3}, "tail of 7.5; it must be even"),
        (
            {"enricher_activation": "gelu"},
            "similarity_norm is 'sum' with enricher_activation 'gelu'",
        ),
        ({"num_retrieved": 2**200}, "num_retrieved is a number of too many digits"),
        ({"tail_share": 1.0}, "tail_share is 1.0.*less than all"),
        ({"max_split_weight": float("inf")}, "max_split_weight is inf"),
        ({"layer_pattern": "static"}, "layer_pattern is 'static'; it must be a list"),
        ({"ranker_direction": "both"}, "ranker_direction is 'both', .* ReferenceAveyB alone has"),
        ({"compressor": "none"}, "compressor is 'none', .* ReferenceAveyB alone has"),
        ({"compressor": "linear", "num_retrieved": 0}, "compressor is 'linear', a choice"),
        ({"funnel_factor": 2}, "funnel_factor is 2, .* FunnelAveyBConfig alone has"),
        ({"funnel_after": 1}, "funnel_after is 1, a choice that FunnelAveyBConfig alone has"),
        ({"similarity_norm": "max"}, "similarity_norm is 'max'"),
        (
            {"num_hidden_layers": 4, "layer_pattern": ["coupled"] * 4},
            "layer_pattern is .'coupled'.*it must be a list",
        ),
        ({"tail_share": 1}, "tail_share is 1.0: of expansion_factor 4"),
        ({"tail_share": 0.0}, "tail_share is 0.0"),
        (
            {"hidden_size": 32, "tail_share": 0.51},
            "hidden_size 32 that is a tail of 65.28",
        ),
    ],
)
def test_bad_settings_are_named(overrides: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AveyBConfig(**overrides)


@refusals(
    {
        ConfigError: {
            # what transformers raises about its own fields
            r"^config\.json: \w+ \(": [
                lambda: AveyBConfig.from_dict(AveyBConfig().to_dict() | {"id2label": 3}),
                lambda: AveyBConfig.from_dict(AveyBConfig().to_dict() | {"num_labels": "many"}),
            ],
            r"^AveyBConfig\.split_size is 0": lambda: AveyBConfig.from_dict({"split_size": 0}),
        },
        ModelError: {
            r"^config\.json: a released Avey-B configuration must have .*; lacks \['v": (
                lambda: AveyBConfig.from_dict({"d_embed": 8})
            ),
        },
    }
)
def test_fields_of_a_file_that_cannot_be_are_refused(refused: Refusal) -> None:
    refused()


SETTINGS = EncoderSettings.__struct_fields__
# tie_word_embeddings and max_position_embeddings are read by transformers and sentence-transformers
OF_TRANSFORMERS = {
    "architectures",
    "dtype",
    "max_position_embeddings",
    "model_type",
    "pad_token_id",
    "tie_word_embeddings",
    "transformers_version",
}


@pytest.mark.parametrize("cls", [AveyBModel, AveyBForMaskedLM])
def test_a_model_that_is_saved_again_has_no_field_that_nothing_reads(
    cls: Any, tmp_path: Path
) -> None:
    cls.from_pretrained(DEFAULT_MODEL).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert set(SETTINGS) <= saved.keys()
    assert saved.keys() - set(SETTINGS) - OF_TRANSFORMERS == set()


def test_every_setting_is_read_somewhere() -> None:
    folder = Path(inspect.getfile(EncoderSettings)).parent
    nodes = chain.from_iterable(
        ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in folder.rglob("*.py")
    )
    read = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert [name for name in SETTINGS if name not in read] == []


def test_the_embedded_models_file_has_every_field_and_no_other_choice(tmp_path: Path) -> None:
    stored = json.loads((DEFAULT_MODEL / "config.json").read_text(encoding="utf-8"))
    config = AveyBConfig.from_pretrained(DEFAULT_MODEL)
    assert set(EncoderSettings.__struct_fields__) <= stored.keys()
    assert config.settings == settings_of(DEFAULT_MODEL)
    assert config.settings.fields().items() <= stored.items()
    config.save_pretrained(tmp_path)
    again = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert {name: again[name] for name in stored if name != "transformers_version"} == {
        name: stored[name] for name in stored if name != "transformers_version"
    }


def test_settings_are_those_of_the_moment_and_checked_again() -> None:
    config = AveyBConfig(num_hidden_layers=2)
    config.split_size = 64
    assert config.settings.split_size == 64
    config.tail = "pad"
    with pytest.raises(ConfigError, match="tail is 'pad'"):
        AveyBModel(config)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "model_type is None"),
        ('{"model_type": "bert"}', "model_type is 'bert', only 'avey-b'"),
        ('{"model_type": "avey-b", "tail": "pad"}', "tail is 'pad'; choose one of"),
        ('{"d_embed": 8}', r"config\.json: a released .* lacks \['vocab_size'"),
    ],
)
def test_a_folder_without_settings_is_named(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=words):
        settings_of(tmp_path)


def test_the_settings_of_a_released_folder_are_those_of_its_configuration(tmp_path: Path) -> None:
    stored = {"vocab_size": 50, "d_embed": 8, "n_layers": 2, "chunk_size": 4, "k": 1, "eps": 1e-6}
    (tmp_path / "config.json").write_text(json.dumps(stored), encoding="utf-8")
    assert settings_of(tmp_path) == AveyBConfig.from_released(**stored).settings


def test_fields_of_others_are_kept() -> None:
    assert AveyBConfig(my_field=3).to_dict()["my_field"] == 3
