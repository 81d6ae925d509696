"""Writing files: the hash known at the end is that of the file, and no failure to flush is lost."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO

import pytest

from aveyb_retrieval import files

if TYPE_CHECKING:
    from pathlib import Path


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    blocks = [bytes([i]) * (100 + i) for i in range(100)]
    with files.atomic_writer(tmp_path / "f") as out:
        for block in blocks:
            out.write(block)
    data = b"".join(blocks)
    assert (tmp_path / "f").read_bytes() == data
    assert (
        out.info()
        == files.FileInfo(len(data), hashlib.sha256(data).hexdigest())
        == files.hash_file(tmp_path / "f")
    )
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_flush_that_fails_fails_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(handle: BinaryIO) -> None:
        raise OSError("lost")

    monkeypatch.setattr(files, "fsync", lost)
    with pytest.raises(OSError, match="lost"), files.atomic_writer(tmp_path / "f") as out:
        out.write(b"x" * 1000)
    assert not (tmp_path / "f").exists()
