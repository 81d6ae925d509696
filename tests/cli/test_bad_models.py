"""Models and devices that `aveyb-index` cannot use: one line, exit code 2, and nothing
left behind.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from click.testing import CliRunner

from aveyb_retrieval.cli.index import main
from tests.encoder.test_sentence_embedder import save_bert, word_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models: one that pools by the mean, one by its first token, a static one, a
    cross-encoder, a plain one.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("models")
    mean, first = (save_bert(folder / pooling, pooling=pooling) for pooling in ("mean", "cls"))
    static = SentenceTransformer(
        modules=[StaticEmbedding(word_tokenizer(), embedding_dim=16)], device="cpu"
    )
    static.save(str(folder / "static"), create_model_card=False)
    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(folder / "cross")
    return {
        "mean": mean,
        "cls": first,
        "static": folder / "static",
        "cross": folder / "cross",
        "plain": first.parent / "bert",
    }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    def invoke(*arguments: object, code: int = 2) -> str:
        result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.output

    (tmp_path / "corpus.jsonl").write_text(
        json.dumps({"_id": "a", "text": "The pump stops at noon. " * 20}) + "\n"
    )
    return invoke


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("cls", ["--late", "--passage-tokens", 16], "pools by"),
        ("static", ["--late"], "has no token outputs that see their neighbours"),
        ("static", ["--token-vectors", "int8"], "token"),
        ("cross", [], "a cross-encoder, which scores pairs of texts and gives no vectors"),
        ("plain", [], "a plain bert model without modules.json"),
        ("mean", ["--device", "gpu"], "'gpu'"),
        pytest.param(
            "mean", ["--device", "cuda"], "cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)  # fmt: skip
def test_a_build_that_cannot_be(
    run: Callable[..., str],
    models: dict[str, Path],
    tmp_path: Path,
    model: str,
    options: list[object],
    message: str,
) -> None:
    printed = run(
        "build",
        tmp_path / "corpus.jsonl",
        "-o",
        tmp_path / "ix",
        "--model",
        models[model],
        "--quiet",
        *options,
    )
    assert message in printed
    assert len(printed.strip().splitlines()) == 1, printed
    assert "Traceback" not in printed
    assert not (tmp_path / "ix").exists()


def test_a_search_that_cannot_be(
    run: Callable[..., str], models: dict[str, Path], tmp_path: Path
) -> None:
    index = tmp_path / "ix"
    run(
        "build",
        tmp_path / "corpus.jsonl",
        "-o",
        index,
        "--model",
        models["mean"],
        "--quiet",
        code=0,
    )
    for options, message in (
        (["--rerank", "token-vectors"], "this index has no token vectors; build it with"),
        (["--model", models["cls"]], "made by the model"),
        (["--device", "gpu"], "'gpu'"),
    ):
        printed = run("search", index, "the pump", *options)
        assert message in printed
        assert len(printed.strip().splitlines()) == 1, printed
    added = run("add", index, tmp_path / "corpus.jsonl", "--model", models["cls"], "--quiet")
    assert "made by the model" in added and len(added.strip().splitlines()) == 1
