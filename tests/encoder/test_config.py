"""Presets have the sizes that the paper and the released checkpoints state; contradictions are
refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.settings import EncoderSettings, settings_of
from aveyb_retrieval.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from pathlib import Path


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
        ({"funnel_factor": 2}, "funnel_factor is 2, .* FunnelAveyBConfig alone has"),
    ],
)
def test_bad_settings_are_named(overrides: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AveyBConfig(**overrides)


@pytest.mark.parametrize("fields", [{"id2label": 3}, {"num_labels": "many"}])
def test_what_transformers_raises_about_a_file_is_a_config_error(fields: dict) -> None:
    with pytest.raises(ConfigError, match=r"^config\.json: \w+ \("):
        AveyBConfig.from_dict(AveyBConfig().to_dict() | fields)


def test_our_own_errors_about_a_file_stay_as_they_are() -> None:
    with pytest.raises(ConfigError, match=r"^AveyBConfig\.split_size is 0"):
        AveyBConfig.from_dict({"split_size": 0})


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


def test_a_released_file_that_lacks_fields() -> None:
    with pytest.raises(
        ModelError, match=r"^config\.json: a released Avey-B configuration must have .*; lacks \['v"
    ):
        AveyBConfig.from_dict({"d_embed": 8})
