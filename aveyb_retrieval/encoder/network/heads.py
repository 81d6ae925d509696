"""AveyBModel with a head for labels of texts or of tokens (Avey-B, 5.1), as transformers models.

The heads are those of the authors' code: three linear maps with GELU between them on a text's mean
token vector, one with tanh on every token's vector, each followed by a classifier. Padding never
reaches a text's result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils import can_return_tuple

from aveyb_retrieval.encoder.network.model import IGNORED_LABEL, AveyBModel, AveyBPreTrainedModel
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

_LABEL_FIELDS = (
    "architectures",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "model_type",
)
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")


class _WithHead(AveyBPreTrainedModel):
    """The encoder as `model`, a head as `dense`, and a classifier of
    `config.num_labels` outputs.
    """

    head_names = ("dense", "classifier")

    def __init__(self, config: AveyBConfig) -> None:
        """Make encoder and classifier; a subclass adds `dense` and calls `post_init`."""
        super().__init__(config)
        self.model = AveyBModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 2)

    @classmethod
    def from_encoder(cls, name: Any, **settings: Any) -> Self:
        """Put a new head on a trained encoder, for fine-tuning.

        Args:
            name: what `AveyBModel.from_pretrained` takes; a head that it was saved with is left
                behind.
            settings: fields of the configuration that the head needs: `num_labels` or `id2label`,
                `problem_type`.

        Raises:
            ModelError: there is no encoder, or it is incomplete.
        """
        encoder = AveyBModel.from_pretrained(name, dtype=torch.float32)
        kept = {
            key: value
            for key, value in encoder.config.to_dict().items()
            if key not in _LABEL_FIELDS
        }
        model = cls(cls.config_class(**(kept | settings)))
        model.model.load_state_dict(encoder.state_dict())
        return model.eval()


class AveyBForSequenceClassification(_WithHead):
    """One vector of `num_labels` scores for each text: classes, several labels at once, or one
    number.

    With one label it is a cross-encoder: `sentence_transformers.CrossEncoder` loads its folder, and
    so does `rerank=`.
    """

    def __init__(self, config: AveyBConfig) -> None:
        """Make the model with random weights; `from_pretrained` loads trained ones."""
        super().__init__(config)
        d = config.hidden_size
        self.dense = nn.Sequential(
            nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Score texts: `W dense(mean of the token vectors) + b`.

        Args:
            input_ids: as for `AveyBModel`, as are `attention_mask`, `inputs_embeds` and
                `output_hidden_states`.
            labels: by `config.problem_type`, or where that is None by their number and dtype: float
                `[B]` for one number ("regression", mean squared error), int64 `[B]` for classes
                ("single_label_classification", cross entropy), float `[B, num_labels]` of 0 and 1
                ("multi_label_classification", binary cross entropy).
            num_items_in_batch: labels in the whole (accumulated) batch; the loss is then the sum
                over that number.

        Returns:
            `logits` `[B, num_labels]`, and with labels the `loss`, a mean, float32.

        Raises:
            ConfigError: `config.problem_type` is not one of the three.
            InputError: a class outside of 0 to `num_labels - 1`, or labels of another shape.
        """
        encoded = self.model(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = encoded.last_hidden_state
        if attention_mask is None:
            mean = hidden.mean(1)
        else:  # padding is zero in the encoder's output
            mean = hidden.sum(1) / (attention_mask != 0).sum(1, keepdim=True).clamp_min(1).to(
                hidden.dtype
            )
        logits = self.classifier(self.dense(mean))
        loss = None if labels is None else self._loss(logits.float(), labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states
        )

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None
    ) -> torch.Tensor:
        problem = self.config.problem_type
        if problem is None and self.config.num_labels == 1:
            problem = "regression"
        elif problem is None:
            problem = (
                "multi_label_classification"
                if labels.is_floating_point()
                else "single_label_classification"
            )
        if problem not in PROBLEMS:
            raise ConfigError(
                f"AveyBConfig.problem_type is {problem!r}; choose one of {', '.join(PROBLEMS)}, or"
                " None"
            )
        if problem == "single_label_classification":
            return _cross_entropy(logits, labels, items)
        if labels.numel() != logits.numel():
            raise InputError(
                f"labels have shape {tuple(labels.shape)}, logits {tuple(logits.shape)}: unequal"
            )
        wanted = labels.view(logits.shape).float()
        loss = (
            nn.functional.mse_loss
            if problem == "regression"
            else nn.functional.binary_cross_entropy_with_logits
        )
        return loss(logits, wanted, reduction="sum") / (logits.numel() if items is None else items)


class AveyBForTokenClassification(_WithHead):
    """`num_labels` scores for each token: entities, parts of speech."""

    def __init__(self, config: AveyBConfig) -> None:
        """Make the model with random weights; `from_pretrained` loads trained ones."""
        super().__init__(config)
        self.dense = nn.Sequential(nn.Linear(config.hidden_size, config.hidden_size), nn.Tanh())
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> TokenClassifierOutput:
        """Score tokens: `W tanh(dense(h)) + b`, `logits` `[B, T, num_labels]`.

        As `AveyBForSequenceClassification.forward`, with labels int64 `[B, T]`, -100 where there is
        none; the loss is mean cross entropy.

        Raises:
            InputError: a label outside of 0 to `num_labels - 1`, or labels of another shape than
                the input.
        """
        encoded = self.model(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = encoded.last_hidden_state
        logits = self.classifier(self.dense(hidden))
        loss = (
            None if labels is None else _cross_entropy(logits.float(), labels, num_items_in_batch)
        )
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


def _cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the mean cross entropy of `logits` `[..., L]` at `labels` int64 `[...]`, where they
    are not -100.

    With `items`: the sum over that number.
    """
    if labels.shape != logits.shape[:-1]:
        raise InputError(
            f"labels have shape {tuple(labels.shape)}, the input asks for"
            f" {tuple(logits.shape[:-1])}"
        )
    asked = labels != IGNORED_LABEL
    out_of_range = labels[asked & ((labels < 0) | (labels >= logits.shape[-1]))]
    if len(out_of_range):
        raise InputError(
            f"labels hold {int(out_of_range[0])}; they must be from 0 to {logits.shape[-1] - 1}, or"
            f" {IGNORED_LABEL} where there is none"
        )
    total = nn.functional.cross_entropy(logits[asked], labels[asked], reduction="sum")
    return total / (asked.sum().clamp_min(1) if items is None else items)


def sequence_ids(
    tokenizer: Tokenizer, first: str, second: str | None, limit: int
) -> tuple[np.ndarray, bool]:
    """Return the ids int64 `[T]` of a text or pair, and whether something was cut off.

    Cut as transformers cuts (`longest_first`): the longer text first, then both alike. A `limit`
    that leaves no room for a token is a ConfigError.
    """
    special = 2 if second is None else 3
    if limit <= special:
        raise ConfigError(
            f"length is {limit}; {special} tokens are [CLS] and [SEP], so it must be more"
        )
    a = tokenizer.encode_ids(first)
    b = np.empty(0, np.int32) if second is None else tokenizer.encode_ids(second)
    room = limit - special
    cut = len(a) + len(b) > room
    if cut:
        shorter, longer = sorted((len(a), len(b)))
        longer = shorter if shorter > room else max(shorter, room - shorter)
        if shorter + longer > room:
            shorter, longer = room // 2, room - room // 2
        kept = (shorter, longer) if len(a) <= len(b) else (longer, shorter)
        a, b = a[: kept[0]], b[: kept[1]]
    parts: list[np.ndarray | list[int]] = [[tokenizer.cls_id], a, [tokenizer.sep_id]]
    if second is not None:
        parts += [b, [tokenizer.sep_id]]
    return np.concatenate(parts).astype(np.int64), cut


def write_template(folder: Path, tokenizer: Tokenizer) -> None:
    """Make the `tokenizer.json` that `tokenizer.save` has written put the same tokens around texts
    and pairs.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    path, special = (
        str(folder / "tokenizer.json"),
        [("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)],
    )
    saved = Tokenizer.from_file(path)
    saved.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A:0 [SEP]:0 $B:0 [SEP]:0", special_tokens=special
    )
    saved.save(path, pretty=False)
