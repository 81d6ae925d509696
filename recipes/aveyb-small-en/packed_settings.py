"""Settings of a run on packed texts: defaults, and the help that `train_packed.py` shows."""

from __future__ import annotations

from dataclasses import dataclass

from aveyb_retrieval.training.settings import RunSettings, setting

HEADS = ("linear", "rotation")


@dataclass(frozen=True)
class PackedSettings(RunSettings):
    """Distillation from packed texts (see `packed_loop.py`); the weights of the loss are the embedded model's."""

    head: str = setting(
        "linear",
        "From the student's vectors to the teacher's: learnt and dropped, or a rotation that stays as it starts.",
        choices=HEADS,
    )
    token_weight: float = setting(0.0, "Weight of the loss on vectors of tokens; needs the rotation.")
    batch_tokens: int = setting(0, "Tokens per step at most (0: no limit).")
    similar: bool = setting(False, "Batches of texts that the teacher finds similar: hard to tell apart.")
    embedding_rate: float = setting(1.0, "Learning rate of the token embedding, as a multiple of the others'.")
    vector_weight: float = setting(10.0, "Weight of the loss on vectors, 1 - cosine to the teacher's.")
    score_weight: float = setting(1.0, "Weight of the loss on the batch's score distributions.")
    pair_weight: float = setting(0.5, "Weight of InfoNCE over pairs.")
    temperature: float = setting(0.15, "Temperature of the score distributions and of InfoNCE.")
    steps: int = 2000
    batch_size: int = 192
    learning_rate: float = 5e-4
    schedule: str = "cosine"
    warmup: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.01
