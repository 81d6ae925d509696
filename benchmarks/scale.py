"""From what was measured here to what 10^9 passages would take: bytes, hours, machines, costs.

    python benchmarks/scale.py                   # the tables of benchmarks/notes/scale.md
    python benchmarks/scale.py --cpu-hour 0.05 --gpu-hour 4 --gpu-tokens-per-second 2e6    # with
    prices and a speed

Every figure is a measured one of benchmarks/results/ multiplied out. What has not been measured is
not guessed: the speed of a GPU and all prices are options, and without them the cells that need
them say so. Costs have the currency of the prices. `python benchmarks/readme.py` writes the tables
into the page.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SIZES = (10**6, 10**7, 10**8, 10**9)
UNMEASURED = "unmeasured"


def results(name: str) -> Any:
    """Read a file of benchmarks/results/."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the assumptions of the tables, with what the command line says instead."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--passages", type=float, nargs="+", default=SIZES, help="how many, one column each")
    add("--tokens", type=int, default=128, help="of a passage")
    add("--piece", type=float, default=10**7, help="passages that one index, or one server, holds")
    add(
        "--shards",
        type=int,
        default=16,
        help="shards that a piece is encoded in, each by one actor",
    )
    add("--processors", type=int, default=16, help="that tokenize and cut for one GPU")
    add("--copies", type=int, default=2, help="of every piece, for searches")
    add("--queries", type=float, default=100, help="searches a second")
    add(
        "--gpu-tokens-per-second",
        type=float,
        help="of one GPU, as you measured it with benchmarks/gpu/run.py --only encode",
    )
    add(
        "--gpu-teraflops",
        type=float,
        default=989,
        help="of the GPU's data sheet (H200, bfloat16), for an estimate",
    )
    add(
        "--gpu-terabytes",
        type=float,
        default=4.8,
        help="a second of the GPU's memory (H200), for an estimate",
    )
    add(
        "--gpu-share",
        type=float,
        default=0.2,
        help="of both that the model is taken to reach, for an estimate",
    )
    add("--cpu-hour", type=float, help="price of a processor core for an hour")
    add("--gpu-hour", type=float, help="price of a GPU for an hour")
    add("--memory-month", type=float, help="price of a GB of memory for a month")
    add("--disk-month", type=float, help="price of a GB on disk for a month")
    return parser.parse_args(arguments)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def cpu_speeds() -> dict[str, float]:
    """Return precision -> tokens a second of one core, the model alone, at 128 tokens
    (cpu_encode.json).
    """
    found = results("cpu_encode.json")
    cores = found["machine"]["threads"]
    return {
        row["dtype"]: row["tokens_per_second"]["Avey-B (ours)"] / cores
        for row in found["rows"]
        if row.get("tokens") == 128
    }


def pipeline() -> dict[str, float]:
    """Return what ray_encode.json says of one process that encodes and writes what it encoded, on
    one core.

    `encode`: tokens a second, from a document that is read to a vector that is written, the start
    of the process included; `read`, `write`: documents a second; `cut`: tokens a second into tokens
    and passages, without the model.
    """
    found = results("ray_encode.json")
    steps, shards = found["steps"], found["machine"]["shards"]
    one, parts = steps["one_process"], steps["parts"]
    documents = one["documents"]
    reading = shards * documents / parts["read_documents_per_cpu_second"]
    return {
        "encode": one["tokens"] / (one["cpu_seconds"] - reading),
        "read": parts["read_documents_per_cpu_second"],
        "cut": parts["cut_tokens_per_cpu_second"],
        "write": parts["write_documents_per_cpu_second"],
        "flops": parts["flops_per_token"],
        "layers": parts["layers"],
        "dim": parts["dim"],
        "index_bytes": steps["searches"]["index_bytes"] / documents,
    }


def hnsw() -> dict[str, float]:
    """Return what cpu_index.json says of the largest HNSW index; bytes and seconds are those of a
    vector.
    """
    row = max(
        (r for r in results("cpu_index.json")["results"] if "HNSW" in r["factory"]),
        key=lambda r: r["count"],
    )
    return {
        "count": row["count"],
        "dim": row["dim"],
        "bytes": row["bare"]["file_mib"] * 2**20 / row["count"],
        "seconds": (
            results("cpu_index.json")["machine"]["threads"] * row["ours"]["seconds"] / row["count"]
        ),
        "recall": row["recall"]["1.0"]["ours"],
        "ms": row["ours"]["p50"],
    }


def bytes_table(tokens: int) -> str:
    """Return the bytes of one passage, by how it is kept."""
    found = hnsw()
    dim = int(found["dim"])
    links = found["bytes"] - 4 * dim
    rows = [
        ["vector, float32", f"4d = {4 * dim:,}", "exact"],
        ["vector, float16", f"2d = {2 * dim:,}", "error of a cosine below 1e-3"],
        ["FAISS `Flat`, in memory", f"4d + 8 = {4 * dim + 8:,}", "1.0"],
        [
            "FAISS `HNSW32`, in memory",
            f"4d + {links:.0f} = {found['bytes']:,.0f}, measured",
            f"{found['recall']:.3f} at {found['count']:,.0f} vectors, measured",
        ],
        [
            "FAISS `IVF,Flat`, on disk",
            f"4d + 8 = {4 * dim + 8:,}",
            f"{UNMEASURED}; more with a larger `nprobe`",
        ],
        [
            "FAISS `OPQ,IVF,PQ`, in memory",
            f"d / 4 + 8 = {dim // 4 + 8}",
            f"{UNMEASURED}; scored again with vectors on disk",
        ],
        [f"token vectors, int8, {tokens} tokens", f"128 x {tokens} = {128 * tokens:,}", ""],
        [f"token vectors, 1bit, {tokens} tokens", f"16 x {tokens} = {16 * tokens:,}", ""],
        [
            "text, words, metadata, FAISS and both vectors of a short document, on disk",
            f"{pipeline()['index_bytes']:,.0f}, measured",
            "",
        ],
    ]
    return table([f"bytes of a passage (d = {dim})", "", "recall@10"], rows)


def host_seconds(given: argparse.Namespace) -> float:
    """Return the seconds of a core for each token beside the model: reading for every shard,
    cutting, writing.
    """
    found = pipeline()
    return 1 / found["cut"] + (given.shards / found["read"] + 1 / found["write"]) / given.tokens


def gpu_speed(given: argparse.Namespace) -> float | None:
    """Return the tokens a second of one GPU with its processors; None where nobody measured the
    GPU.
    """
    if given.gpu_tokens_per_second is None:
        return None
    return min(given.gpu_tokens_per_second, given.processors / host_seconds(given))


def gpu_estimate(given: argparse.Namespace) -> float:
    """Return U min(F / f, B / b), tokens a second of the model alone: an estimate, since no GPU was
    measured.

    F, B: operations and bytes a second of the GPU; U: the share of them that is reached; f:
    operations for a token; b: bytes for a token, those counted in bfloat16 for a width of 768
    (gpu_counts.json), in proportion to the width.
    """
    found = pipeline()
    counted = next(
        r
        for r in results("gpu_counts.json")["rows"]
        if r["preset"] == "paper" and r["tokens"] == 512
    )
    moved = counted["bytes_per_token_and_layer_now"] * found["layers"] * found["dim"] / 768
    return float(
        given.gpu_share
        * min(given.gpu_teraflops / found["flops"], given.gpu_terabytes / moved)
        * 1e12
    )


def hours_table(given: argparse.Namespace) -> str:
    """Return the hours of one core, and of one GPU, for 10^9 tokens."""
    speeds, found = cpu_speeds(), pipeline()
    host = given.processors / host_seconds(given)

    def row(name: str, speed: float, price: float | None) -> list[str]:
        hours = 1e9 / speed / 3600
        return [
            name,
            f"{speed:,.0f}",
            f"{hours:,.2f}",
            "" if price is None else f"{hours * price:,.2f}",
        ]

    rows = [
        row(f"one core, the model alone, {kind}", speed, given.cpu_hour)
        for kind, speed in speeds.items()
    ]
    rows.append(
        row(
            "one core, from the document that was read to the shard, float32",
            found["encode"],
            given.cpu_hour,
        )
    )
    rows.append(
        row("one core, cutting into tokens and passages alone", found["cut"], given.cpu_hour)
    )
    gpu = gpu_speed(given)
    if gpu is None:
        rows.append(["one H200", UNMEASURED, UNMEASURED, UNMEASURED])
        rows.append(row("one H200, the model alone, *an estimate*", gpu_estimate(given), None))
    else:
        rows.append(row(f"one H200 with {given.processors} cores", gpu, given.gpu_hour))
    rows.append(row(f"what {given.processors} cores can feed a GPU", host, None))
    head = ["for 10^9 tokens", "tokens/s", "hours", "cost"]
    if given.cpu_hour is None and given.gpu_hour is None:
        head, rows = head[:-1], [row[:-1] for row in rows]
    return table(head, rows)


def plan_table(given: argparse.Namespace) -> str:
    """Return what all passages take together, one column for each size."""
    found, index, gpu = pipeline(), hnsw(), gpu_speed(given)
    columns = []
    for size in given.passages:
        tokens, pieces = size * given.tokens, math.ceil(size / given.piece)
        shards = pieces * given.shards
        encoding = tokens / found["encode"] / 3600
        fed = tokens * host_seconds(given) / given.processors / 3600
        # each shard reads its piece of the corpus
        reading = given.shards * size / found["read"] / 3600
        memory, disk = size * index["bytes"] / 1e9, size * found["index_bytes"] / 1e9
        building = size * index["seconds"] / 3600
        cores = given.queries * pieces * index["ms"] / 1000
        cells = {
            "tokens": f"{tokens:.2g}",
            "pieces, and shards of all of them": f"{pieces:,} x {given.shards} = {shards:,}",
            "encoding on CPUs in float32, core-hours": f"{encoding:,.0f}",
            "reading, once for each shard, core-hours": f"{reading:,.1f}",
            "encoding on GPUs, GPU-hours": (
                f"{tokens / gpu / 3600:,.1f}" if gpu else f"{UNMEASURED}; more than {fed:,.1f}"
            ),
            "indexes, GB on disk": f"{disk:,.0f} x {given.copies}",
            "HNSW32 in memory, GB": f"{memory:,.0f} x {given.copies}",
            "IVF-PQ in memory, GB": f"{size * (index['dim'] / 4 + 8) / 1e9:,.1f} x {given.copies}",
            "making the indexes (HNSW32), core-hours": f"{building:,.1f}",
            f"cores for {given.queries:g} searches a second, vectors alone": f"{cores:,.1f}",
        }
        if given.cpu_hour is not None:
            cells["reading, encoding and indexing on CPUs, cost"] = (
                f"{(encoding + reading + building) * given.cpu_hour:,.0f}"
            )
        if given.gpu_hour is not None and gpu is not None:
            cells["encoding on GPUs, cost"] = f"{tokens / gpu / 3600 * given.gpu_hour:,.0f}"
        if given.memory_month is not None:
            cells["memory (HNSW32), cost a month"] = (
                f"{memory * given.copies * given.memory_month:,.0f}"
            )
        if given.disk_month is not None:
            cells["disk, cost a month"] = f"{disk * given.copies * given.disk_month:,.0f}"
        columns.append(cells)
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return table(
        [
            f"passages of {given.tokens} tokens",
            *(f"{size:.0e}".replace("e+0", "e") for size in given.passages),
        ],
        rows,
    )


def tables(arguments: list[str] | None = None) -> str:
    """Return all tables, for these options of the command."""
    given = options(arguments)
    return "\n\n".join([bytes_table(given.tokens), hours_table(given), plan_table(given)])


if __name__ == "__main__":
    print(tables())
