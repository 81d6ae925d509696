import gzip
import json
from pathlib import Path

import pytest
import zstandard

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.texts import fingerprint, read_texts
from tests.refusals import Refusal, refusals

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


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_a_file_that_is_cut_short_or_damaged_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    whole = (gzip.compress if suffix.endswith("gz") else zstandard.ZstdCompressor().compress)(LINES)
    path.write_bytes(whole[:-4])
    with pytest.raises(InputError, match="ends in the middle"):
        list(read_texts([path]))
    path.write_bytes(b"no such magic number")
    with pytest.raises(InputError, match="the file is damaged"):
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
