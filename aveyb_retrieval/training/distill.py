"""Learn a sentence encoder from a teacher: its vectors and its scores.

The terms of the loss:

- vectors: `1 - cos(W s, t)`, where W maps the student's width to the teacher's and is dropped
  afterwards;
- scores: Kullback-Leibler divergence between the teacher's and the student's distribution over the
  batch (for pairs: anchor against every positive; for single texts: each against all others).

"The batch" is that of all processes: each gathers every vector and computes the whole loss.
Gathering sums the gradients of the processes and DistributedDataParallel averages them, so the
model's gradient, and that of W, which is outside of the wrapped model, are those of one process
with the whole batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.types import silent
from aveyb_retrieval.training.sentence_trainer import train_sentence_model
from aveyb_retrieval.training.settings import DistillSettings
from aveyb_retrieval.training.teacher import (
    Targets,
    Teacher,
    cache_vectors,
    phrases,
    read_targets,
    read_vectors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer
    from aveyb_retrieval.indexes.types import Progress
    from aveyb_retrieval.training.run_folder import TrainingRun


def batch_scores(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return cosines `[B, B]`: first texts by second ones, or single texts by each other (-inf with
    themselves).
    """
    # a temperature makes what bfloat16 rounds away large
    with torch.autocast(vectors[0].device.type, enabled=False):
        scores = vectors[0] @ vectors[-1].T
    if len(vectors) == 1:
        return scores.masked_fill(
            torch.eye(len(scores), dtype=torch.bool, device=scores.device), float("-inf")
        )
    return scores


def score_divergence(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the mean over rows of KL(teacher || student) of the softmax of scores `[B, B]`."""
    if len(student) == 1:
        return student.new_zeros(())
    target = (teacher / temperature).softmax(-1)
    # log p is -inf where a score is (a text with itself); the target is 0 there and the product
    # must be, too.
    difference = (teacher / temperature).log_softmax(-1) - (student / temperature).log_softmax(-1)
    return torch.where(target > 0, target * difference, 0).sum(-1).mean()


class DistillationLoss(nn.Module):
    """A sentence-transformers loss for rows of one text (`text`) or two (`anchor`, `positive`).

    The label of a row is the row number of each of its texts in `teacher_vectors`: int64 `[B,
    columns]`.

    Args:
        model: the student; its `sentence_embedding` must be of unit length.
        teacher_vectors: `[N, D_teacher]` unit rows, float16 or float32; kept as given, not saved.
        temperature: of the score distributions, on cosines.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        teacher_vectors: np.ndarray,
        *,
        vector_weight: float = 1.0,
        score_weight: float = 1.0,
        temperature: float = 0.05,
    ) -> None:
        super().__init__()
        if temperature <= 0:
            raise ConfigError(f"temperature is {temperature}; it must be above 0")
        if not (vector_weight or score_weight):
            raise ConfigError(
                "both weights of the distillation loss are 0: there is nothing to learn"
            )
        self.model = model
        dim = model.get_embedding_dimension()
        if dim is None:
            raise ConfigError(
                "the student does not report the dimension of its vectors (get_embedding_dimension"
                " is None)"
            )
        self.teacher_vectors = torch.from_numpy(teacher_vectors)
        self.head = nn.Linear(dim, teacher_vectors.shape[1], bias=False)
        self.vector_weight, self.score_weight, self.temperature = (
            vector_weight,
            score_weight,
            temperature,
        )

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the terms over the rows of all processes, a float32 scalar.

        There are features for each text of a row; labels, int64 `[B, columns]`, are rows of the
        teacher's vectors.
        """
        from sentence_transformers.util import all_gather, all_gather_with_grad
        from sentence_transformers.util.distributed import get_world_size

        students = [
            self.model(features)["sentence_embedding"].float() for features in sentence_features
        ]
        labels = labels.view(len(labels), -1)
        if labels.shape[1] != len(students):
            raise InputError(
                f"a row has {len(students)} texts and {labels.shape[1]} teacher rows: the label"
                " column must name one teacher row for each text"
            )
        if get_world_size() > 1:
            students, labels = [all_gather_with_grad(s) for s in students], all_gather(labels)
        rows = labels.cpu()
        if rows.min() < 0 or rows.max() >= len(self.teacher_vectors):
            raise InputError(
                f"labels name the teacher's rows {int(rows.min())} to {int(rows.max())}, there are"
                f" {len(self.teacher_vectors)}: the texts and the teacher's vectors do not belong"
                " together"
            )
        teachers = [
            self.teacher_vectors[rows[:, i]].to(s.device).float() for i, s in enumerate(students)
        ]
        loss = students[0].new_zeros(())
        if self.vector_weight:
            with torch.autocast(students[0].device.type, enabled=False):
                pairs = zip(students, teachers, strict=True)
                cosines = [
                    nn.functional.cosine_similarity(self.head(s), t).mean() for s, t in pairs
                ]
            loss = loss + self.vector_weight * (1 - torch.stack(cosines).mean())
        if self.score_weight:
            scores = batch_scores(students), batch_scores(teachers)
            loss = loss + self.score_weight * score_divergence(*scores, self.temperature)
        return loss


def train_distill(
    model: SentenceTransformer,
    texts: Sequence[str],
    teacher: str | Sequence[Teacher],
    run: TrainingRun,
    *,
    queries: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    settings: DistillSettings | None = None,
    progress: Progress = silent,
) -> Path:
    """Teach `model` the teacher's vectors and scores for `texts`; see `train_sentence_model` for
    the run folder.

    All read the texts as documents and queries as queries, with their own prompts for those.

    The teacher's vectors are cached in the run folder's `teacher` (resumable by itself). Of several
    teachers, or with queries or phrases, the student learns what they say together (`teacher.py`).

    Blank texts are left out; queries need not be about the texts.
    """
    settings = settings or DistillSettings()
    settings.check()
    filled_texts = [text for text in texts if text.strip()]
    settings.check_rows(len(filled_texts), f"{len(filled_texts)} texts are", "text")
    all_queries = [query for query in queries if query.strip()] + phrases(
        filled_texts, settings.phrases, settings.seed
    )
    if settings.near and not all_queries:
        raise ConfigError(
            f"near is {settings.near}, but there are no queries: give some, or phrases"
        )
    reading: dict[str, Any] = {
        "max_tokens": settings.teacher_tokens,
        "precision": settings.teacher_precision,
    }
    reading |= {"device": run.device, "progress": progress}
    folder = Path(run.folder)
    if isinstance(teacher, str) and not all_queries:
        cache = cache_vectors(filled_texts, folder / "teacher", model=teacher, **reading)
        targets = Targets(read_vectors(cache), len(filled_texts))
    else:
        teachers = [Teacher(teacher)] if isinstance(teacher, str) else teacher
        dim = model.get_embedding_dimension() or 0
        targets = read_targets(
            teachers,
            filled_texts,
            all_queries,
            folder,
            dim=dim,
            seed=settings.seed,
            **reading,
        )
    prompts = {"text": model.prompts.get("document"), "query": model.prompts.get("query")}
    torch.manual_seed(settings.seed)  # the head starts at random
    loss = DistillationLoss(
        model,
        targets.vectors,
        vector_weight=settings.vector_weight,
        score_weight=settings.score_weight,
        temperature=settings.temperature,
    )
    return train_sentence_model(
        model,
        rows_to_learn(filled_texts, all_queries, targets, settings),
        loss,
        run,
        title="Distillation",
        tokenizer=tokenizer,
        settings=settings,
        prompts={column: prompt for column, prompt in prompts.items() if prompt} or None,
        max_tokens=settings.max_tokens,
    )


def rows_to_learn(
    texts: Sequence[str], queries: Sequence[str], targets: Targets, settings: DistillSettings
) -> dict[str, Dataset]:
    """Return the sets of rows, labelled by rows of the targets: texts alone, and queries alone or
    with a near text.
    """
    from datasets import Dataset

    sets = {"texts": [{"text": text, "label": [i]} for i, text in enumerate(texts)]}
    if settings.near:
        sets["queries"] = [
            {"query": query, "text": texts[j], "label": [len(texts) + i, int(j)]}
            for i, (query, j) in enumerate(
                zip(queries, targets.near(settings.near, settings.seed), strict=True)
            )
        ]
    elif queries:
        sets["queries"] = [
            {"query": query, "label": [len(texts) + i]} for i, query in enumerate(queries)
        ]
    return {name: Dataset.from_list(rows) for name, rows in sets.items()}
