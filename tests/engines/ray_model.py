"""A toy model for Ray's actors: slow enough to be killed at work, and it logs what it encodes, and in which process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument

FATAL = "fatal-document"
POISON = "poison-document"


class LoggedModel(FakeEmbedder):
    """Writes a line for each document into a file of each process: its process, then its first word."""

    def __init__(self, log: Path, seconds: float = 0.0, seed: str = "a") -> None:
        super().__init__(seed=seed)
        self.log = log
        self.seconds = seconds

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        for prefix, text in documents:
            if text.startswith(FATAL):
                os._exit(1)
            if text.startswith(POISON):
                raise RuntimeError("out of memory on the device")
            time.sleep(self.seconds)
            (encoded,) = super().encode_documents([(prefix, text)])
            with (self.log / str(os.getpid())).open("a") as out:
                out.write(f"{text.split()[0]}\n")
            yield encoded


def rows(count: int) -> list[dict[str, str]]:
    """Documents whose first words are all different."""
    return [{"_id": f"doc-{i}", "text": f"number{i} word{i % 37} word{i % 11} word{i % 5}"} for i in range(count)]


def encoded(log: Path) -> list[str]:
    """The first word of every document that was encoded, by whomever, in any order."""
    return [word for file in log.iterdir() for word in file.read_text().split()]


def main() -> None:
    """Encode as a driver of its own, which a test may kill."""
    from aveyb_retrieval import RayCluster, encode_corpus

    address, out, log, count, of, seconds = sys.argv[1:]
    report = encode_corpus(
        rows(int(count)),
        out,
        of=int(of),
        model=LoggedModel(Path(log), float(seconds)),
        ray=RayCluster(address, actors=2, cpus=0.5),
    )
    print(report.documents, report.encoded)


if __name__ == "__main__":
    main()
