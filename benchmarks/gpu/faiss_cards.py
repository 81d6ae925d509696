"""FAISS on a card beside faiss-cpu and torch's exact search: milliseconds, recall, memory, time to
build, filters.

    python3 benchmarks/gpu/faiss_cards.py OUT --seconds 100
    python3 benchmarks/gpu/faiss_cards.py OUT --toy            # without a card, too

Vectors are unit rows around random centres, in 384 dimensions as the embedded model's. One wheel
does both: faiss-gpu has all of faiss-cpu, and faiss-gpu-cuvs CAGRA, too. Rows "package" are files
that the package makes and searches, each trained and searched on the CPU and on the card. A row is
appended to OUT/faiss.jsonl as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from aveyb_retrieval.indexes.nearest.due_files import make_tier
from aveyb_retrieval.indexes.nearest.tiers import Memory, VectorSearcher
from tests.indexes.nearest.fake import FakeVectors

if TYPE_CHECKING:
    from collections.abc import Callable

BEGIN = time.time()
K = 100


class Bench:
    """Vectors, queries, exact answers, and a file of rows."""

    def __init__(self, out: Path, seconds: float, toy: bool) -> None:
        self.out, self.seconds, self.toy = out, seconds, toy
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.n, self.dim, self.lists = (20_000, 64, 64) if toy else (1_000_000, 384, 4096)
        out.mkdir(parents=True, exist_ok=True)
        (out / "faiss.jsonl").write_text("")
        generator = torch.Generator(self.device).manual_seed(0)
        centres = torch.randn(self.n // 100, self.dim, device=self.device, generator=generator)

        def draw(count: int) -> torch.Tensor:
            chosen = torch.randint(len(centres), (count,), device=self.device, generator=generator)
            noise = torch.randn(count, self.dim, device=self.device, generator=generator)
            return torch.nn.functional.normalize(centres[chosen] + 0.8 * noise, dim=-1)

        self.on_device, self.wanted = draw(self.n), draw(1000)
        self.vectors, self.queries = self.on_device.cpu().numpy(), self.wanted.cpu().numpy()

    def left(self) -> float:
        return self.seconds - (time.time() - BEGIN)

    def add(self, **row: Any) -> None:
        line = {"at": round(time.time() - BEGIN, 1)} | row
        with (self.out / "faiss.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(
            "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            ),
            flush=True,
        )

    def timed(self, search: Callable[[np.ndarray], np.ndarray], batch: int) -> float:
        """Median milliseconds of a search of `batch` queries, by the host's clock, results on the
        host.
        """
        times = []
        for i in range(2 + min(30, max(3, 600 // batch))):
            start = (i * batch) % (len(self.queries) - batch + 1)
            begin = time.perf_counter()
            search(self.queries[start : start + batch])
            times.append(1e3 * (time.perf_counter() - begin))
            if sum(times) > 1500:
                break
        return statistics.median(times[2:] or times)

    def nearest(self, among: np.ndarray | None = None) -> np.ndarray:
        """The ten nearest of each query, exactly, among some positions."""
        held = (
            self.on_device
            if among is None
            else self.on_device[torch.from_numpy(among).to(self.device)]
        )
        found = (
            torch.cat([(q @ held.T).topk(10).indices for q in self.wanted.split(100)]).cpu().numpy()
        )
        return found if among is None else among[found]

    def searched(
        self,
        name: str,
        search: Callable[[np.ndarray], np.ndarray],
        among: np.ndarray | None = None,
        **facts: Any,
    ) -> None:
        """Add the row of one way to search; `search` gives the positions of the K best,
        best first.
        """
        if self.left() < 2:
            self.add(name=name, note="no time")
            return
        try:
            found = search(self.queries[:200])[:, :10]
            exact = self.nearest(among)[:200]
            recall = np.mean(
                [len(np.intersect1d(a, b)) / 10 for a, b in zip(found, exact, strict=True)]
            )
            if among is not None:
                facts["obeyed"] = bool(np.isin(found, among).all())
            row = {f"ms_{batch}": self.timed(search, batch) for batch in (1, 16, 256, 1000)}
            self.add(name=name, recall=float(recall), **facts, **row)
        except Exception as error:
            traceback.print_exc()
            self.add(
                name=name,
                ok=False,
                note=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            )

    def used(self) -> float:
        """GiB of the card in use, by whatever."""
        if not self.cuda:
            return 0.0
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**30


def product_search(
    bench: Bench, among: np.ndarray | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """The K best as the package finds them on a GPU: exactly, by torch, among some numbers."""
    blocks = (
        (np.arange(i, min(i + 65_536, bench.n)), bench.vectors[i : i + 65_536])
        for i in range(0, bench.n, 65_536)
    )
    memory = Memory(bench.dim, bench.device.type).with_blocks(blocks)
    return lambda queries: memory.search(queries, K, among)[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--torch", action="store_true", help="without FAISS")
    options = parser.parse_args()
    bench = Bench(options.out, options.seconds, options.toy)
    bench.add(
        name="vectors", n=bench.n, dim=bench.dim, cpus=os.cpu_count(), made_s=time.time() - BEGIN
    )
    bench.searched("torch", product_search(bench))
    tenth = np.arange(0, bench.n, 10)
    bench.searched("torch, a tenth by numbers", product_search(bench, tenth), among=tenth)
    if options.torch:
        return
    import faiss

    gpus = faiss.get_num_gpus()
    bench.add(name="faiss", version=faiss.__version__, gpus=gpus, imported_s=time.time() - BEGIN)
    resources = faiss.StandardGpuResources() if gpus else None
    indexes = on_card(bench, faiss, resources) if gpus else {}
    on_cpu(bench, faiss)
    in_package(bench, gpus)
    if gpus:
        filters_on_card(bench, faiss, resources, indexes)


def search_of(index: Any, params: Any = None) -> Callable[[np.ndarray], np.ndarray]:
    return lambda queries: index.search(queries, K, params=params)[1]


def attempt(bench: Bench, name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` gives and add its seconds and memory, or None and the error."""
    if bench.left() < 4:
        bench.add(name=name, note="no time")
        return None
    before, begin = bench.used(), time.perf_counter()
    try:
        made = make()
    except Exception as error:
        bench.add(
            name=name,
            ok=False,
            note=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
        )
        return None
    bench.add(name=name, made_s=time.perf_counter() - begin, gib=bench.used() - before)
    return made


def flat_on_card(bench: Bench, faiss: Any, resources: Any, half: bool) -> Any:
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = half
    index = faiss.GpuIndexFlatIP(resources, bench.dim, config)
    index.add(bench.vectors)
    return index


def clusters_on_card(bench: Bench, faiss: Any, resources: Any, kind: str) -> Any:
    """An IVF index, trained and filled on the card."""
    index = faiss.index_factory(bench.dim, f"IVF{bench.lists},{kind}", faiss.METRIC_INNER_PRODUCT)
    options = faiss.GpuClonerOptions()
    options.useFloat16 = True
    there = faiss.index_cpu_to_gpu(resources, 0, index, options)
    there.train(bench.vectors[:: max(1, bench.n // (50 * bench.lists))])
    there.add(bench.vectors)
    return there


def on_card(bench: Bench, faiss: Any, resources: Any) -> dict[str, Any]:
    """Measure what the card searches; return the indexes that filters are tried on."""
    kept = {}
    for bits in (16, 32):
        name = f"card flat float{bits}"
        index = attempt(
            bench, f"{name} made", partial(flat_on_card, bench, faiss, resources, bits == 16)
        )
        if index is not None:
            bench.searched(name, search_of(index))
            if bits == 16:
                kept["flat float16"] = index
    for kind in ("Flat", "SQ8", f"PQ{bench.dim // 8}x8"):
        index = attempt(
            bench, f"card IVF {kind} made", partial(clusters_on_card, bench, faiss, resources, kind)
        )
        for probes in (16, 64) if index is not None else ():
            index.nprobe = probes
            bench.searched(f"card IVF {kind}, {probes} probes", search_of(index))
        if kind == "Flat" and index is not None:
            kept["IVF Flat"] = index
    return kept


def filters_on_card(bench: Bench, faiss: Any, resources: Any, indexes: dict[str, Any]) -> None:
    """What of a selector and of other kinds of indexes a card takes: last, because it may end the
    process.
    """
    rows = np.arange(0, bench.n, 10)
    chosen = np.zeros(bench.n, dtype=bool)
    chosen[rows] = True
    selectors = {
        "numbers": faiss.IDSelectorBatch(rows),
        "bits": faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little")),
    }
    clusters = indexes.get("IVF Flat")
    if clusters is not None:
        back = attempt(bench, "card IVF Flat to the CPU", partial(faiss.index_gpu_to_cpu, clusters))
        if back is not None:
            attempt(
                bench,
                "CPU IVF Flat to the card",
                partial(faiss.index_cpu_to_gpu, resources, 0, back),
            )
    for name, description in (
        ("RaBitQ", f"IVF{bench.lists},RaBitQ"),
        ("HNSW", "HNSW16"),
        ("SQfp16", "SQfp16"),
    ):
        small = faiss.index_factory(bench.dim, description, faiss.METRIC_INNER_PRODUCT)
        attempt(bench, f"{name} to the card", partial(faiss.index_cpu_to_gpu, resources, 0, small))
    for name, index in indexes.items():
        for kind, selector in selectors.items():
            options = (
                faiss.SearchParametersIVF(sel=selector, nprobe=64)
                if "IVF" in name
                else faiss.SearchParameters(sel=selector)
            )
            bench.searched(f"card {name}, a tenth by {kind}", search_of(index, options), among=rows)


def in_package(bench: Bench, gpus: int) -> None:
    """What the package makes of inverted lists and of a graph, and finds in them, on a CPU and on a
    card.
    """
    held = FakeVectors("document", np.arange(bench.n, dtype=np.int64), bench.vectors)
    lists = bench.lists // 4
    with tempfile.TemporaryDirectory() as folder:
        for factory in (f"IVF{lists},Flat", f"IVF{lists},RaBitQfs;nprobe={lists // 4}", "CAGRA"):
            for device in ("cpu", "cuda:0")[: 1 + bool(gpus)]:
                name = f"package {factory} on {device}"
                making = partial(
                    make_tier,
                    Path(folder),
                    f"faiss/{factory}-{device}",
                    "document",
                    0,
                    bench.n,
                    held,
                )
                made = attempt(
                    bench, f"{name} made", partial(making, bench.n, factory, device=device)
                )
                opening = partial(
                    VectorSearcher.open, Path(folder), "document", made and [made[0]], held, bench.n
                )
                nearest = made and attempt(bench, f"{name} opened", partial(opening, device=device))
                if nearest:
                    bench.searched(
                        name, lambda queries, nearest=nearest: nearest.search(queries, K)[1]
                    )


def on_cpu(bench: Bench, faiss: Any) -> None:
    inner = faiss.METRIC_INNER_PRODUCT
    flat = faiss.IndexFlatIP(bench.dim)
    flat.add(bench.vectors)
    bench.searched("CPU flat", search_of(flat))

    def trained() -> Any:
        index = faiss.index_factory(bench.dim, f"IVF{bench.lists // 4},RaBitQ", inner)
        index.train(bench.vectors[:: max(1, bench.n // (40 * bench.lists // 4))])
        index.add(bench.vectors)
        return index

    index = attempt(bench, "CPU IVF RaBitQ made, a quarter of the lists", trained)
    if index is not None:
        index.nprobe = 32
        bench.searched("CPU IVF RaBitQ, 32 probes", search_of(index))


if __name__ == "__main__":
    main()
