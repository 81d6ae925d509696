"""Make a model folder of trained weights: the layout, vocabulary and prompts of the model that the run started from."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from aveyb_retrieval.encoder.embedders.sentence_transformers import read_prompts, sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary


def main() -> None:
    """Parse the arguments and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="RUN/model of train_packed.py")
    parser.add_argument("--start", type=Path, required=True, help="the model folder that the run started from")
    parser.add_argument("--start-share", type=float, default=0.0, help="of the start's weights in a mean of both")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = AveyBModel.from_pretrained(args.weights, dtype=torch.float32)
    if args.start_share:
        start = AveyBModel.from_pretrained(args.start, dtype=torch.float32).state_dict()
        mixed = {name: value.lerp(start[name], args.start_share) for name, value in model.state_dict().items()}
        model.load_state_dict(mixed)
    sentence_transformer(model, read_vocabulary(args.start), args.out, prompts=read_prompts(args.start))


if __name__ == "__main__":
    main()
