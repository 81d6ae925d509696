"""Train a byte-level BPE vocabulary of any size from text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from aveyb_retrieval.encoder.text.tokenizer import SPECIAL_TOKENS, AveyBTokenizer, mark, printable_bytes, words_pattern
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

SMALLEST = 256 + len(SPECIAL_TOKENS)


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int,
    *,
    pattern: str | None = None,
    capitals: str = "bytes",
    name: str = "aveyb",
) -> AveyBTokenizer:
    """Learn byte pair encoding (Sennrich et al., 2016) over the UTF-8 bytes of `texts`.

    Args:
        texts: read once, streamed.
        vocab_size: rows in all: 256 bytes, the merges, and the special tokens at the end.
        pattern: pre-tokenisation; merges never cross its pieces. None: the usual one for `capitals`.
        capitals: "bytes" or "marks", see `AveyBTokenizer`.
        name: of the vocabulary.

    Raises:
        ConfigError: `vocab_size` leaves no room for merges.
        InputError: the texts hold too few different pairs for `vocab_size`.
    """
    if vocab_size <= SMALLEST:
        raise ConfigError(f"vocab_size is {vocab_size}; 256 bytes and {len(SPECIAL_TOKENS)} special tokens need more")
    pattern = pattern or words_pattern(capitals)
    tokenizer = Tokenizer(models.BPE())
    if capitals == "marks":
        texts = (mark(text)[0] for text in texts)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    wanted = vocab_size - len(SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=wanted,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=32,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocab = tokenizer.get_vocab()
    if len(vocab) < wanted:
        raise InputError(
            f"the text gives {len(vocab)} tokens, {wanted} are wanted for vocab_size {vocab_size}: "
            "give more text or ask for fewer"
        )
    byte_of = {character: byte for byte, character in printable_bytes().items()}
    ordered = sorted(vocab, key=lambda token: vocab[token])
    return AveyBTokenizer.from_ranks(
        [bytes(byte_of[character] for character in token) for token in ordered],
        pattern=pattern,
        capitals=capitals,
        name=name,
    )
