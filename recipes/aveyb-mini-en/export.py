"""Write a trained model as the package embeds it: float16 weights that load as float32, and nothing that is not needed.

Checks before anything is written for good: the size limit, that transformers loads float32, and that the vectors of the
float16 weights agree with those of the model as trained.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import aveyb_retrieval  # noqa: F401  (registers the architecture)
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.training.texts import read_texts

LIMIT = 16 * 2**20
KEPT = {
    "config.json",
    "model.safetensors",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "vocab.tiktoken",
    "aveyb_tokenizer.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="what train.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True, help="a .jsonl of texts to compare vectors on")
    args = parser.parse_args()

    work = Path(tempfile.mkdtemp())
    shutil.copytree(args.model, work, dirs_exist_ok=True)
    for path in work.iterdir():
        if path.is_file() and path.name not in KEPT:
            path.unlink()
    weights = {name: value.half() for name, value in load_file(args.model / "model.safetensors").items()}
    save_file(weights, work / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((work / "config.json").read_text())
    config["dtype"] = "float32"  # what the weights become when they are loaded
    (work / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    size = (work / "model.safetensors").stat().st_size
    if size > LIMIT:
        sys.exit(f"the weights take {size:,} bytes, more than {LIMIT:,}")
    texts = [text for _, text in zip(range(200), read_texts([args.texts]), strict=False)]
    trained = SentenceTransformer(str(args.model), device="cpu").encode_document(texts)
    model = SentenceTransformer(str(work), device="cpu")
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {torch.float32}:
        sys.exit(f"the exported model loads as {dtypes}, not float32")
    agreement = (trained * model.encode_document(texts)).sum(1)
    ours = np.stack([d.vector for d in Embedder.load(work).encode_documents(("", text) for text in texts)])
    difference = np.abs(ours - model.encode_document(texts)).max()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {size:,} bytes")
    print(f"cosine of float16 to float32 weights: at least {agreement.min():.6f}")
    print(f"Embedder against sentence-transformers: at most {difference:.1e} apart")
    if agreement.min() < 0.9999 or difference > 1e-5:
        sys.exit("the exported model does not agree with the trained one")
    args.out.mkdir(parents=True, exist_ok=True)
    shutil.copytree(work, args.out, dirs_exist_ok=True)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
