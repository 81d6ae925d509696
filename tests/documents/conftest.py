"""What tests of readers share: a file's text as an index gets it, the page of a word, and why a
file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable
from aveyb_retrieval.documents.readers.kinds import kind_of, read_file
from aveyb_retrieval.documents.readers.process import FileReader

if TYPE_CHECKING:
    from pathlib import Path

Read = Callable[[str, bytes], FileText]


LIMITS = Limits(1 << 20)


@pytest.fixture(scope="module")
def reader() -> Iterator[FileReader]:
    with FileReader(LIMITS) as found:
        yield found


@pytest.fixture
def read(reader: FileReader, tmp_path: Path) -> Read:
    def read(name: str, data: bytes) -> FileText:
        path = tmp_path / name
        path.write_bytes(data)
        kind = kind_of(path)
        assert kind is not None
        found, digest = reader.read(path, kind)
        # nothing is lost between the process that reads files and this one
        assert (found, digest) == read_file(path, kind, LIMITS)
        return found

    return read


def reason(read: Read, name: str, data: bytes) -> str:
    """The one line that says why a file is not read."""
    with pytest.raises(Unreadable) as caught:
        read(name, data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def label(found: FileText, word: str) -> str:
    """The page of a word, as it is cited."""
    assert found.pages is not None
    return str(found.pages.at(found.text.index(word)))
