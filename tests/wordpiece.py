"""A tiny BERT with a WordPiece vocabulary: what a distilled model takes its vocabulary and
embedding from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel

from aveyb_retrieval.encoder.text.tokenizer import SPECIAL_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def save_vocabulary(folder: Path, texts: Iterable[str], rows: int = 120) -> None:
    """Write a tokenizer.json as BERT's: it cuts, pads, and adds [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=rows, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def save_teacher(folder: Path, texts: Iterable[str], *, width: int = 32, seed: int = 0) -> Path:
    """Write a BERT of two layers with its vocabulary; return the folder."""
    save_vocabulary(folder, texts)
    torch.manual_seed(seed)
    rows = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = BertConfig(
        vocab_size=rows,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=264,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    return folder
