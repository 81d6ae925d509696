"""Make a model folder of trained weights: the layout, vocabulary and prompts of the model that the run started from."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.sentence_transformers import read_prompts, sentence_transformer
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer


def main() -> None:
    """Parse the arguments and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="RUN/model of train_packed.py")
    parser.add_argument("--start", type=Path, required=True, help="the model folder that the run started from")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = AveyBModel.from_pretrained(args.weights, dtype=torch.float32)
    sentence_transformer(model, AveyBTokenizer.load(args.start), args.out, prompts=read_prompts(args.start))


if __name__ == "__main__":
    main()
