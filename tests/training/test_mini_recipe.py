"""Parts of the recipe of aveyb-mini-en: where the token embedding starts, and its loss on pairs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pair_distillation import PairDistillationLoss
from token_embeddings import token_embeddings_from_teacher

from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError

from .test_distill import Echo, make, unit


def test_pairs_against_the_plain_formula() -> None:
    students, teachers, temperature = unit(4, 5, seed=1), unit(8, 5, seed=2), 0.2
    rows = torch.tensor([[0, 1], [2, 3]])
    weights = {"vector_weight": 1e-9, "score_weight": 0.0, "temperature": temperature}
    loss = PairDistillationLoss(Echo(5), teachers.numpy(), pair_weight=1.0, head=np.eye(5, dtype=np.float32), **weights)
    assert torch.equal(loss.head.weight, torch.eye(5))
    teacher_scores = teachers[rows[:, 0]] @ teachers[rows[:, 1]].T
    logits = (students[:2] @ students[2:].T / temperature).masked_fill(
        teacher_scores > teacher_scores.diagonal()[:, None], float("-inf")
    )
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(2)).item()
    assert loss([{"given": students[:2]}, {"given": students[2:]}], rows).item() == pytest.approx(expected, abs=1e-6)
    single = PairDistillationLoss(Echo(5), teachers.numpy(), pair_weight=9.0, **weights)
    assert single([{"given": students}], torch.arange(4)[:, None]).item() < 1e-6


def test_token_embeddings_come_from_the_teacher(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    frequent = tokenizer.ranks[b" the"]
    counts[frequent] = 1000
    model = make(tmp_path / "teacher", tokenizer, seed=9, hidden_size=48)
    embedding, axes = token_embeddings_from_teacher(tokenizer, model, 24, counts=counts, smoothing=1e-2)
    assert embedding.shape == (360, 24) and axes.shape == (48, 24)
    assert np.allclose(axes.T @ axes, np.eye(24), atol=1e-4)
    assert not embedding[tokenizer.mask_id].any()
    rare = tokenizer.ranks[b"the"]  # the same text without the blank: the same direction, not weighted down
    cosine = (
        embedding[rare] @ embedding[frequent] / np.linalg.norm(embedding[rare]) / np.linalg.norm(embedding[frequent])
    )
    assert cosine == pytest.approx(1.0, abs=1e-5)
    assert np.linalg.norm(embedding[frequent]) < 0.02 * np.linalg.norm(embedding[rare])
    with pytest.raises(ConfigError, match="larger than the teacher's 48"):
        token_embeddings_from_teacher(tokenizer, model, 64, counts=counts)
    with pytest.raises(ConfigError, match="3 token counts"):
        token_embeddings_from_teacher(tokenizer, model, 8, counts=np.zeros(3, dtype=np.int64))
