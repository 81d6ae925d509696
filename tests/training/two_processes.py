"""What torchrun starts in `test_packed_loop`: a tiny run on packed texts, by as many processes as there are."""

import sys

import torch
from packed import PackedTexts
from packed_loop import train_packed
from packed_settings import PackedSettings

from aveyb_retrieval.encoder.network.model import AveyBModel

if __name__ == "__main__":
    model, packed, out, minutes = sys.argv[1:]
    torch.set_num_threads(1)
    settings = PackedSettings(
        steps=6, batch_size=6, learning_rate=3e-3, precision="float32", log_every=1, save_every=2, seed=1
    )
    train_packed(
        AveyBModel.from_pretrained(model, dtype=torch.float32),
        PackedTexts.load(packed),
        out,
        settings=settings,
        minutes=float(minutes) if minutes else None,
    )
