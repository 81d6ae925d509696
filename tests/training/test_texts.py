"""Texts to train on, and a vocabulary of them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.texts import fingerprint, read_texts, train_vocabulary
from tests.refusals import Refusal, refusals

from .conftest import SENTENCES

LINES = b"".join(json.dumps({"text": f"text {i} é"}).encode() + b"\n" for i in range(3))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_reads_every_kind(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    pack = {
        ".jsonl": bytes,
        ".jsonl.gz": gzip.compress,
        ".jsonl.zst": zstandard.ZstdCompressor().compress,
    }[suffix]
    path.write_bytes(pack(LINES))
    assert list(read_texts([path])) == ["text 0 é", "text 1 é", "text 2 é"]


def test_a_txt_file_is_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    assert list(read_texts([tmp_path / "a.txt"])) == ["one\ntwo"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}\n", "line 1: field 'text'"),
        (b'{"text": "a"}\n\n{"text": 3}\n', "line 3: field 'text' must be a string, it is int"),
        (b'{"text": "a"}\nnope\n', "line 2: not JSON"),
        (b"[1]\n", "line 1: a JSON object is needed"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "line 2: invalid UTF-8"),
    ],
)
def test_bad_lines_name_file_and_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"bad.jsonl.*{reason}"):
        list(read_texts([path]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-4], "ends in the middle"),
        (lambda data: b"no such magic number", "the file is damaged"),
    ],
    ids=["cut", "another kind"],
)
@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".jsonl.gz", gzip.compress), (".jsonl.zst", zstandard.ZstdCompressor().compress)],
)
def test_a_file_that_is_cut_short_or_damaged_is_refused(
    tmp_path: Path,
    suffix: str,
    pack: Callable[[bytes], bytes],
    damage: Callable[[bytes], bytes],
    message: str,
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(damage(pack(LINES)))
    with pytest.raises(InputError, match=message):
        list(read_texts([path]))


def list_texts(paths: list[Path]) -> list[str]:
    return list(read_texts(paths))


@refusals(
    {
        InputError: {
            "is not a file": lambda folder: list_texts([folder / "no.jsonl"]),
            "unknown kind": lambda folder: list_texts([folder / "a.pdf"]),
        },
    }
)
def test_missing_and_unknown_files_are_refused(tmp_path: Path, refused: Refusal) -> None:
    (tmp_path / "a.pdf").write_bytes(b"")
    refused(tmp_path)


def test_fingerprint_follows_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    first = fingerprint(path)
    assert first["bytes"] == len(LINES)
    path.write_bytes(LINES + b"\n")
    assert fingerprint(path)["sha256"] != first["sha256"]


def test_links_to_training_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_bytes(LINES)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    assert (
        fingerprint(tmp_path / "link.jsonl")["sha256"]
        == fingerprint(tmp_path / "real.jsonl")["sha256"]
    )
    assert len(list(read_texts([tmp_path / "link.jsonl"]))) == 3


# --- a vocabulary of texts -----------------------------------------------------------------------


def test_size_and_round_trip(tokenizer: AveyBTokenizer) -> None:
    assert tokenizer.vocab_size == 360
    text = f"{SENTENCES[7]} — and naïve 🙂 bytes it never saw"
    ids, _ = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text


def test_frequent_words_become_single_tokens(tokenizer: AveyBTokenizer) -> None:
    assert len(tokenizer.encode(" before noon")[0]) == 2


def test_the_same_text_gives_the_same_vocabulary() -> None:
    assert train_vocabulary(SENTENCES, 300).ranks == train_vocabulary(iter(SENTENCES), 300).ranks


def test_auto_tokenizer_agrees(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*SENTENCES, "unseen: 12345 xyz\n\n", "[MASK]"]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text)[0].tolist()


@refusals(
    {
        ConfigError: {
            "vocab_size is 261": lambda: train_vocabulary(SENTENCES, 261),
        },
        InputError: {
            "give more text or ask for fewer": lambda: train_vocabulary(["only this"], 300),
        },
    }
)
def test_sizes_that_the_texts_do_not_give_are_refused(refused: Refusal) -> None:
    refused()
