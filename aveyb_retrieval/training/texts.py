"""Read training text, identify exactly which text it was, and learn a vocabulary from it.

Files: `.jsonl`, `.jsonl.gz`, `.jsonl.zst` (one object a line, the text in one field) and `.txt`
(the whole file is one text). Nothing is loaded whole; order is the order of the files and their
lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from aveyb_retrieval.documents.reading import read_objects
from aveyb_retrieval.encoder.text.tokenizer import (
    SPECIAL_TOKENS,
    WORDS_PATTERN,
    AveyBTokenizer,
    printable_bytes,
)
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")
SMALLEST = 256 + len(SPECIAL_TOKENS)


def read_texts(paths: Iterable[str | Path], *, field: str = "text") -> Iterator[str]:
    """Yield every text of the files, in order; in JSON Lines it is the string in `field`."""
    for path in map(Path, paths):
        if path.suffix == ".txt":
            _check(path)
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}: not UTF-8 at byte {error.start} ({error.reason}); convert the file"
                ) from error
            continue
        for number, record in read_records(path):
            text = record.get(field)
            if not isinstance(text, str):
                raise InputError(
                    f"{path}, line {number}: field {field!r} must be a string, it is"
                    f" {type(text).__name__}; the line has {sorted(record)}"
                )
            yield text


def text_key(text: str) -> str:
    """Return what two texts share that differ only in case and white space."""
    return " ".join(text.casefold().split())


def read_placed(paths: Iterable[str | Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of JSON Lines files, each with its file and line for messages."""
    for path in paths:
        for number, record in read_records(path):
            yield f"{path}, line {number}", record


def read_records(path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the object of each line of a JSON Lines file that is not blank."""
    path = Path(path)
    _check(path)
    yield from read_objects(path)


def field_in(record: Mapping[str, Any], names: Iterable[str], where: str) -> str:
    """Return the first of some fields that a record has; `where` it stands, for messages."""
    if field := next((name for name in names if name in record), None):
        return field
    raise InputError(
        f"{where}: no field {' or '.join(names)}; the line has {', '.join(sorted(record))}"
    )


def text_in(record: Mapping[str, Any], field: str, where: str) -> str:
    """Return the text in a field of a record. Raises InputError: there is none, or it is blank."""
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: field {field!r} must be a text, it is {value!r}")
    return value


def fingerprint(path: str | Path) -> dict[str, Any]:
    """Return name, size in bytes and SHA-256 of a file, as a run folder records its data."""
    path = Path(path)
    _check(path)
    info = hash_file(path, follow_links=True)
    return {"name": path.name, "bytes": info.bytes, "sha256": info.sha256}


def _check(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    if not path.name.endswith(_SUFFIXES):
        raise InputError(
            f"{path}: unknown kind of file; training text is read from {', '.join(_SUFFIXES)}"
        )


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int,
    *,
    name: str = "aveyb",
    pattern: str = WORDS_PATTERN,
) -> AveyBTokenizer:
    """Learn byte pair encoding (Sennrich et al., 2016) over the UTF-8 bytes of `texts`.

    Args:
        texts: read once, streamed.
        vocab_size: rows in all: 256 bytes, the merges, and the special tokens at the end.
        pattern: what cuts a text into the pieces that merges never cross.
    """
    if vocab_size <= SMALLEST:
        raise ConfigError(
            f"vocab_size is {vocab_size}; 256 bytes and {len(SPECIAL_TOKENS)} special tokens need"
            " more"
        )
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    learned_size = vocab_size - len(SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=learned_size,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=32,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocab = tokenizer.get_vocab()
    if len(vocab) < learned_size:
        raise InputError(
            f"the text gives {len(vocab)} tokens, {learned_size} are wanted for vocab_size"
            f" {vocab_size}: give more text or ask for fewer"
        )
    byte_of = {character: byte for byte, character in printable_bytes().items()}
    ranks = [
        bytes(byte_of[character] for character in token)
        for token in sorted(vocab, key=lambda t: vocab[t])
    ]
    return AveyBTokenizer.from_ranks(ranks, name=name, pattern=pattern)
