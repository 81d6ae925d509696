"""The ranker's MaxSim with and without the token-id shortcut, on real English text.

    python benchmarks/cpu/ranker.py                        # 2K, 8K, 32K tokens of the standard
    library's docstrings python benchmarks/cpu/ranker.py --text book.txt --tokens 2048 --toy

Prints a table and writes JSON. Embeddings are random: MaxSim's cost depends on which ids repeat,
not on their vectors.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.kernels.maxsim import split_scores, unit_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPLIT = 256
EPS = 1e-12


def docstrings() -> Iterator[str]:
    """English text that every Python carries: the docstrings of its standard library, in order of
    file name.
    """
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                text := ast.get_docstring(node)
            ):
                yield text


def token_ids(texts: Iterator[str], n: int) -> torch.Tensor:
    """The first n token ids of the texts, int64 `[n]`."""
    tokenizer = AveyBTokenizer.p50k_base()
    ids: list[int] = []
    for text in texts:
        ids += tokenizer.encode_ids(text + "\n\n").tolist()
        if len(ids) >= n:
            return torch.tensor(ids[:n])
    raise SystemExit(f"the text has {len(ids)} tokens, {n} were asked for: give more with --text")


def best_time(run: Callable[[], torch.Tensor], repeats: int) -> float:
    """Milliseconds of processor time, all threads together, of the fastest of `repeats` runs after
    one more.

    Processor time, so that another program on the same cores does not change the comparison.
    """
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def measure(ids: torch.Tensor, width: int, repeats: int, without_up_to: int) -> dict[str, Any]:
    """One row: both forms on one document of these ids (whole splits only)."""
    splits = ids.view(-1, SPLIT)
    lengths = torch.full((len(splits),), SPLIT)
    table = torch.randn(int(ids.max()) + 1, width, generator=torch.Generator().manual_seed(0))

    def without() -> torch.Tensor:
        unit = unit_rows(table[splits], EPS)
        scores = torch.full((len(unit), len(unit)), float("-inf"))
        for i in range(1, len(unit)):
            cosines = unit[i] @ unit[:i].reshape(-1, width).T
            scores[i, :i] = cosines.view(SPLIT, i, SPLIT).amax(-1).sum(0)
        return scores

    def with_shortcut() -> torch.Tensor:
        return split_scores(splits, lengths, [0, len(splits)], table, EPS)

    row: dict[str, Any] = {
        "tokens": len(ids),
        "splits": len(splits),
        "distinct_ids": len(ids.unique()),
        "distinct_ids_per_split": sum(len(s.unique()) for s in splits) / len(splits),
        "with_cpu_ms": best_time(with_shortcut, repeats),
        "without_cpu_ms": None,
        "max_difference": None,
    }
    if len(ids) <= without_up_to:
        row["without_cpu_ms"] = best_time(without, repeats)
        earlier = torch.ones(len(splits), len(splits)).tril(-1).bool()
        row["max_difference"] = float((with_shortcut() - without())[earlier].abs().max())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", type=Path, action="append", help="text files in place of the docstrings"
    )
    parser.add_argument(
        "--tokens", type=int, action="append", help="document lengths (default 2048, 8192, 32768)"
    )
    parser.add_argument("--width", type=int, default=768, help="of an embedding")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--without-up-to", type=int, default=32768, help="leave the long way out beyond this length"
    )
    parser.add_argument(
        "--toy", action="store_true", help="512 and 1024 tokens, width 32: a dry run of a second"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu_ranker.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    counts = options.tokens or ([512, 1024] if options.toy else [2048, 8192, 32768])
    width = 32 if options.toy else options.width
    texts = (p.read_text(encoding="utf-8") for p in options.text) if options.text else docstrings()
    ids = token_ids(texts, max(counts))

    print(
        f"MaxSim of one document, width {width}, splits of {SPLIT}, float32, {options.threads}"
        " threads; processor time"
    )
    print(" tokens distinct per split  without ms   with ms  ratio  max diff")
    rows = []
    for n in counts:
        row = measure(ids[: n // SPLIT * SPLIT], width, options.repeats, options.without_up_to)
        rows.append(row)
        compared = f"{'-':>11} {row['with_cpu_ms']:9.1f} {'-':>6} {'-':>9}"
        if (without := row["without_cpu_ms"]) is not None:
            ratio = without / row["with_cpu_ms"]
            compared = (
                f"{without:11.1f} {row['with_cpu_ms']:9.1f} {ratio:6.2f}"
                f" {row['max_difference']:9.1e}"
            )
        print(
            f"{row['tokens']:7} {row['distinct_ids']:8} {row['distinct_ids_per_split']:9.0f}"
            f" {compared}"
        )
    about = {"torch": torch.__version__, "threads": options.threads, "cpus": os.cpu_count()}
    about |= {
        "machine": platform.machine(),
        "width": width,
        "split_size": SPLIT,
        "repeats": options.repeats,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
