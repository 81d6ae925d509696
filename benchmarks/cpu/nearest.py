"""Types of FAISS files for `index="auto"`: recall of ten after scoring candidates again,
milliseconds, bytes, seconds.

    python benchmarks/cpu/nearest.py --vectors vectors.npy --queries queries.npy     # real ones
    `[n, d]` float32 python benchmarks/cpu/nearest.py --sizes 200000
    # and synthetic ones beside them

Every type is searched through `VectorSearcher`, as an index does it, one query at a time on one
thread; candidates are read from an array in memory, so where an index reads them from its store
each costs some microseconds more ("candidates" is how many were read). Filters keep a share of all
vectors, drawn at random. Synthetic vectors are a mixture of 2,000 clusters of 48 dimensions, turned
into 256, with noise: harder than most real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from aveyb_retrieval.indexes.nearest.due_files import make_tier
from aveyb_retrieval.indexes.nearest.tiers import VectorSearcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

TYPES = (
    "memory",
    "IVF1,RaBitQfs",
    "IVF1,RaBitQfs2",
    "IVF1,SQ8",
    "IVF{cells},RaBitQfs",
    "IVF{cells},Flat",
    "HNSW32",
)
SHARES = (None, 0.5, 0.1, 0.01)
DIM = 256


class Arrays:
    """`Vectors` in memory."""

    def __init__(self, rows: FloatArray) -> None:
        self.rows, self.dim, self.read = rows, rows.shape[1], 0

    def live(self, numbers: IntArray) -> tuple[IntArray, FloatArray]:
        """All are stored."""
        self.read += len(numbers)
        return numbers, self.rows[numbers]

    def selected(self, numbers: IntArray, rows: int) -> Iterator[tuple[IntArray, FloatArray]]:
        """Numbers are positions."""
        self.read += len(numbers)
        for start in range(0, len(numbers), rows):
            yield numbers[start : start + rows], self.rows[numbers[start : start + rows]]

    def blocks(
        self, first: int, stop: int, rows: int = 16384
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Numbers are positions."""
        stop = min(stop, len(self.rows))
        for start in range(first, stop, rows):
            end = min(start + rows, stop)
            yield np.arange(start, end, dtype=np.int64), self.rows[start:end]


def synthetic(count: int) -> tuple[FloatArray, FloatArray]:
    """Unit vectors `[count, d]` and 200 queries of the same distribution."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(2000, 48)).astype(np.float32)
    turn = rng.normal(size=(48, DIM)).astype(np.float32)

    def draw(n: int) -> FloatArray:
        points = centers[rng.integers(0, len(centers), n)] + rng.normal(size=(n, 48)).astype(
            np.float32
        )
        rows = points @ turn + 0.8 * rng.normal(size=(n, DIM)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return np.concatenate([draw(min(50_000, count - i)) for i in range(0, count, 50_000)]), draw(
        200
    )


def measure(
    rows: FloatArray, queries: FloatArray, kind: str, factory: str, probes: int | None
) -> dict[str, Any]:
    """One type on some vectors."""
    vectors, count = Arrays(rows), len(rows)
    row: dict[str, Any] = {"vectors": kind, "count": count, "type": factory, "nprobe": probes}
    with tempfile.TemporaryDirectory() as folder:
        tiers, started = [], time.perf_counter()
        if factory != "memory":
            tier, info = make_tier(
                Path(folder), "faiss/a", "document", 0, count, vectors, count, factory
            )
            row |= {
                "build_s": round(time.perf_counter() - started, 2),
                "file_mb": round(info.bytes / 1e6, 2),
            }
            if probes is not None:
                tier.params["nprobe"] = probes
            tiers = [tier]
        started = time.perf_counter()
        nearest = VectorSearcher.open(Path(folder), "document", tiers, vectors, count)
        row["open_ms"] = round((time.perf_counter() - started) * 1e3, 1)
        for share in SHARES:
            among = None
            if share is not None:
                chosen = np.random.default_rng(1).random(count) < share
                among = np.flatnonzero(chosen).astype(np.int64)
            found, times = [], []
            vectors.read = 0
            for query in queries[:, None]:
                started = time.perf_counter()
                found.append(nearest.search(query, 10, among)[1][0])
                times.append(time.perf_counter() - started)
            read = vectors.read / len(queries)
            candidates = rows if among is None else rows[among]
            truth = np.argpartition(-(queries @ candidates.T), 10, axis=1)[:, :10]
            if among is not None:
                truth = among[truth]
            recall = np.mean([np.isin(t, f).mean() for t, f in zip(truth, found, strict=True)])
            row[f"{share or 1:.0%}"] = {
                "recall": round(float(recall), 4),
                "ms": round(float(np.median(times)) * 1e3, 3),
                "candidates": round(read),
            }
    return row


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=Path, help="real vectors, .npy")
    parser.add_argument("--queries", type=Path, help="queries to them, .npy")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[], help="numbers of synthetic vectors"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/nearest.json"))
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(1)
    sets = [(f"synthetic {size:,}", *synthetic(size)) for size in arguments.sizes]
    if arguments.vectors:
        sets.insert(0, ("real", np.load(arguments.vectors), np.load(arguments.queries)))
    rows = []
    for kind, vectors, queries in sets:
        cells = 2 ** round(np.log2(np.sqrt(len(vectors))))
        for factory in TYPES:
            probes = (
                [None] if "IVF{" not in factory else [max(1, cells // 16), cells // 8, cells // 4]
            )
            for probe in probes:
                rows.append(measure(vectors, queries, kind, factory.format(cells=cells), probe))
                print(json.dumps(rows[-1]), flush=True)
                result = {
                    "faiss": faiss.__version__,
                    "threads": 1,
                    "load": os.getloadavg()[0],
                    "rows": rows,
                }
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
                arguments.out.with_suffix(".md").write_text(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    shares = [f"{share or 1:.0%}" for share in SHARES]
    head = [
        "vectors",
        "type",
        "nprobe",
        "build s",
        "file MB",
        *(f"{share}: recall, ms" for share in shares),
    ]
    lines = [" | ".join(head), "|".join("---" for _ in head)]
    for row in rows:
        cells = [
            row["vectors"],
            row["type"],
            row["nprobe"] or "",
            row.get("build_s", ""),
            row.get("file_mb", ""),
        ]
        cells += [f"{row[share]['recall']:.3f}, {row[share]['ms']:.2f}" for share in shares]
        lines.append(" | ".join(map(str, cells)))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
