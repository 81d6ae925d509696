"""Writing files: the hash known at the end is that of the file, and no failure to flush is lost."""

from __future__ import annotations

import hashlib
import stat
import sys
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


@pytest.mark.parametrize("platform", sorted({"win32", sys.platform}))
def test_a_replaced_file_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(b"{}")
    path.chmod(0o640)
    mode = stat.S_IMODE(path.stat().st_mode)  # Windows knows 0o666 and 0o444 alone
    monkeypatch.setattr(files.sys, "platform", platform)
    if platform == "win32":  # which has no such function before Python 3.13
        monkeypatch.delattr(files.os, "fchmod", raising=False)
    files.replace_in_place(path, b'{"a": 1}')
    monkeypatch.undo()
    assert path.read_bytes() == b'{"a": 1}'
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [p.name for p in tmp_path.iterdir()] == ["settings.json"]
