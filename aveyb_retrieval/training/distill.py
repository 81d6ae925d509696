"""Learn a sentence encoder from a teacher: its vectors, its scores, and pairs that belong together.

The three terms of the loss are those of `losses.py`.

"The batch" is that of all processes: each gathers every vector and computes the whole loss. Gathering sums the
gradients of the processes and DistributedDataParallel averages them, so the model's gradient, and that of W, which is
outside of the wrapped model, are those of one process with the whole batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.losses import distillation_loss
from aveyb_retrieval.training.sentence_trainer import train_sentence_model
from aveyb_retrieval.training.settings import DistillSettings
from aveyb_retrieval.training.teacher import cache_vectors, encode_with, read_vectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
    from aveyb_retrieval.encoder.wordpiece import Tokenizer
    from aveyb_retrieval.indexes.types import Progress


class DistillationLoss(nn.Module):
    """A sentence-transformers loss for rows of one text (`text`) or two (`anchor`, `positive`).

    The label of a row is the row number of each of its texts in `teacher_vectors`: int64 `[B, columns]`.

    Args:
        model: the student; its `sentence_embedding` must be of unit length.
        teacher_vectors: `[N, D_teacher]` unit rows, float16 or float32; kept as given, not saved.
        vector_weight, score_weight, pair_weight: weights of the three terms.
        temperature: of the score distributions and of InfoNCE, both on cosines.
        margin: how much closer than the positive a batch-mate must be for the teacher to be dropped as a negative.
        head: `[D_teacher, D_student]`, where W starts; None: at random.

    Raises:
        ConfigError: no term has a weight, the temperature is not positive, or `head` has another shape.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        teacher_vectors: np.ndarray,
        *,
        vector_weight: float = 1.0,
        score_weight: float = 1.0,
        pair_weight: float = 0.0,
        temperature: float = 0.05,
        margin: float = 0.0,
        head: np.ndarray | None = None,
    ) -> None:
        """Build the head; see the class for the arguments."""
        super().__init__()
        if temperature <= 0:
            raise ConfigError(f"temperature is {temperature}; it must be above 0")
        if not (vector_weight or score_weight or pair_weight):
            raise ConfigError("all three weights of the distillation loss are 0: there is nothing to learn")
        self.model = model
        dim = model.get_embedding_dimension()
        if dim is None:
            raise ConfigError(
                "the student does not report the dimension of its vectors (get_embedding_dimension is None)"
            )
        self.teacher_vectors = torch.from_numpy(teacher_vectors)
        self.head = nn.Linear(dim, teacher_vectors.shape[1], bias=False)
        if head is not None:
            if head.shape != tuple(self.head.weight.shape):
                raise ConfigError(
                    f"head has the shape {head.shape}; from the student's {dim} dimensions to the teacher's "
                    f"{teacher_vectors.shape[1]} it must be {tuple(self.head.weight.shape)}"
                )
            with torch.no_grad():
                self.head.weight.copy_(torch.from_numpy(head))
        self.vector_weight, self.score_weight, self.pair_weight = vector_weight, score_weight, pair_weight
        self.temperature, self.margin = temperature, margin

    def forward(self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the terms over the rows of all processes, a float32 scalar.

        Args:
            sentence_features: one for each text of a row.
            labels: int64 `[B, columns]`, rows of the teacher's vectors.

        Raises:
            InputError: the labels do not fit the texts or the teacher's vectors.
        """
        from sentence_transformers.util import all_gather, all_gather_with_grad
        from sentence_transformers.util.distributed import get_world_size

        students = [self.model(features)["sentence_embedding"].float() for features in sentence_features]
        labels = labels.view(len(labels), -1)
        if labels.shape[1] != len(students):
            raise InputError(
                f"a row has {len(students)} texts and {labels.shape[1]} teacher rows: the label column must name one "
                "teacher row for each text"
            )
        if get_world_size() > 1:
            students, labels = [all_gather_with_grad(s) for s in students], all_gather(labels)
        rows = labels.cpu()
        if rows.min() < 0 or rows.max() >= len(self.teacher_vectors):
            raise InputError(
                f"labels name the teacher's rows {int(rows.min())} to {int(rows.max())}, there are "
                f"{len(self.teacher_vectors)}: the texts and the teacher's vectors do not belong together"
            )
        teachers = [self.teacher_vectors[rows[:, i]].to(s.device).float() for i, s in enumerate(students)]
        return distillation_loss(
            students,
            teachers,
            self.head,
            vector_weight=self.vector_weight,
            score_weight=self.score_weight,
            pair_weight=self.pair_weight,
            temperature=self.temperature,
            margin=self.margin,
        )


def token_embeddings_from_teacher(
    tokenizer: AveyBTokenizer,
    teacher: Any,
    dim: int,
    *,
    counts: np.ndarray,
    smoothing: float = 2e-4,
    precision: str = "float32",
) -> tuple[np.ndarray, np.ndarray]:
    """Make a token embedding to start from: the teacher's vector of each token alone.

    Every token's text is encoded by the teacher, the vectors are centered and reduced by principal components, and
    frequent tokens are weighted down by `a / (a + p)` (SIF: Arora et al., 2017), so that already the plain mean of a
    text's token embeddings is a fair sentence vector. Special tokens, and pieces of characters, start at zero.

    Args:
        tokenizer: gives the text of each token.
        teacher: a SentenceTransformer.
        dim: width of the embedding.
        counts: `[vocab_size]`, how often each id occurs in the training text.
        smoothing: SIF's a.
        precision: of the teacher's matrix products, "float32" or "bfloat16".

    Returns:
        The embedding `[vocab_size, dim]` and the principal axes `[D_teacher, dim]` that lead back to the teacher's
        space, both float32.

    Raises:
        ConfigError: `dim` is larger than the teacher's dimension, or `counts` has another length than the vocabulary.
    """
    width = teacher.get_embedding_dimension()
    if dim > width:
        raise ConfigError(f"hidden_size {dim} is larger than the teacher's {width} dimensions: nothing to reduce")
    if len(counts) != tokenizer.vocab_size:
        raise ConfigError(f"{len(counts)} token counts are given for a vocabulary of {tokenizer.vocab_size}")
    texts: list[str] = []
    ids: list[int] = []
    for token, i in tokenizer.ranks.items():
        text = token.decode("utf-8", errors="ignore").strip()
        if text:
            texts.append(text)
            ids.append(i)
    distinct = sorted(set(texts))
    row = {text: i for i, text in enumerate(distinct)}
    vectors = encode_with(teacher, distinct, precision=precision)[[row[text] for text in texts]]
    vectors -= vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(vectors, full_matrices=False)
    probability = counts[ids] / max(1, counts.sum())
    weights = smoothing / (smoothing + probability)
    embedding = np.zeros((tokenizer.vocab_size, dim), dtype=np.float32)
    embedding[ids] = (vectors @ axes[:dim].T) * weights[:, None]
    return embedding, np.ascontiguousarray(axes[:dim].T)


def train_distill(
    model: SentenceTransformer,
    texts: Sequence[str],
    teacher: str,
    folder: str | Path,
    *,
    data: dict[str, Any],
    tokenizer: Tokenizer | None = None,
    settings: DistillSettings | None = None,
    resume: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Teach `model` the teacher's vectors and scores for `texts`; see `train_sentence_model` for the run folder.

    The teacher's vectors are cached in `folder/teacher` first (resumable by itself).

    Args:
        model: the student.
        texts: what it learns from; blank ones are left out.
        teacher: folder or name of a sentence-transformers model.
        folder: the run folder.
        data: fingerprints of what `texts` came from.
        tokenizer: saved with the student.
        settings: None: the defaults.
        resume: continue from the newest checkpoint.
        device: "cpu" keeps teacher and student off an accelerator.
        progress: called as the teacher encodes.

    Raises:
        InputError: fewer texts than one batch, or a cache of another teacher or other texts.
    """
    from datasets import Dataset

    settings = settings or DistillSettings()
    kept = [text for text in texts if text.strip()]
    if len(kept) < settings.batch_size:
        raise InputError(
            f"{len(kept)} texts are less than one batch of {settings.batch_size}: give more text or a smaller batch"
        )
    cache = cache_vectors(
        kept,
        Path(folder) / "teacher",
        model=teacher,
        device=device or "cpu",
        max_tokens=settings.teacher_tokens,
        precision=settings.teacher_precision,
        progress=progress,
    )
    torch.manual_seed(settings.seed)  # the head starts at random
    loss = DistillationLoss(
        model,
        read_vectors(cache),
        vector_weight=settings.vector_weight,
        score_weight=settings.score_weight,
        temperature=settings.temperature,
    )
    return train_sentence_model(
        model,
        {"texts": Dataset.from_list([{"text": text, "label": [i]} for i, text in enumerate(kept)])},
        loss,
        folder,
        title="Distillation",
        data=data,
        tokenizer=tokenizer,
        settings=settings,
        resume=resume,
        device=device,
    )
