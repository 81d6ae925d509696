"""A BERT to compare with: of a given number of parameters, its head on masked tokens
only if asked.
"""

from __future__ import annotations

import torch
import transformers
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput

from aveyb_retrieval.encoder.network.model import IGNORED_LABEL


class MaskedBert(transformers.BertForMaskedLM):
    """BERT with our head's economy: logits `[masked, V]` only where a token is asked for.

    The loss is the same.
    """

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> MaskedLMOutput:
        """Both int64 `[B, N]`; labels are -100 where nothing is asked."""
        asked = labels != IGNORED_LABEL
        logits = self.cls(self.bert(input_ids).last_hidden_state[asked])
        return MaskedLMOutput(
            loss=nn.functional.cross_entropy(logits.float(), labels[asked]), logits=logits
        )


def bert_of(count: int, *, vocab: int, width: int, depth: int, positions: int) -> MaskedBert:
    """A new one with about `count` parameters: its inner layers are made as wide as that takes.

    No dropout.
    """

    def build(inner: int) -> MaskedBert:
        config = transformers.BertConfig(
            vocab_size=vocab,
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=max(1, width // 64),
            intermediate_size=inner,
            max_position_embeddings=positions,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return MaskedBert(config)

    per_unit = depth * (2 * width + 1)
    return build(8 * max(1, 1 + round((count - parameters(build(8))) / per_unit / 8)))


def parameters(model: nn.Module) -> int:
    """How many numbers are learnt; tied ones count once."""
    return sum(p.numel() for p in model.parameters())
