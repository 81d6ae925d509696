"""Judge kernels and model on a GPU, in a fixed number of seconds: imports once, then each part in a
process of its own.

    python3 benchmarks/gpu/run.py OUT                       # everything, 150 seconds
    python3 benchmarks/gpu/run.py OUT --only graphs         # some parts, of PARTS below
    python3 benchmarks/gpu/run.py OUT --compiled --seconds 300   # the encoder by torch.compile
    python3 benchmarks/gpu/run.py OUT --device cpu --toy    # a dry run

A part is a fork of this process, which never touches the device itself, with a deadline: what
crashes or hangs costs its own rows. Rows are appended to OUT/rows.jsonl as soon as they are
measured, and printed in short at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGIN = time.time()
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "2",
    # to ask for a device must not occupy it in the parent of the forks
    "PYTORCH_NVML_BASED_CUDA_CHECK": ("1"),
    # a pool of processes takes longer to start than small graphs to compile
    "TORCHINDUCTOR_COMPILE_THREADS": ("1"),
}
# (name, what runs it, its groups, weight of its time); what a part does not use goes to those after
# it
PARTS = (
    ("kernels", "operations.check", [f"{i}" for i in range(16)], 30),
    ("graphs", "models.check", ["released", "paper", "masked", "float32"], 20),
    ("encode", "models.encode", ["ours"], 20),
    ("timing", "operations.timing", ["kernels"], 25),
    ("train", "models.train", ["ours", "modernbert", "torch"], 12),
    ("peers", "models.encode", ["modernbert"], 20),
    ("profile", "models.profile", ["8 x 2048", "1 x 98304", "8 x 98304"], 12),
    ("eager", "models.encode", ["launches", "torch"], 12),
    ("compiled", "operations.timing", ["compiled"], 20),
)
# the encoder by torch.compile beside the kernels; it compiles for minutes, so it has its own call
COMPILED_PARTS = (
    ("ours", "models.encode", ["ours"], 20),
    ("whole-right", "models.check_compiled", ["released", "paper"], 60),
    ("whole", "models.encode", ["compiled"], 120),
    ("whole-train", "models.train", ["ours", "compiled"], 60),
)
TOGETHER = {"kernels", "graphs"}  # nothing is timed in them


@dataclass
class Context:
    """What a part gets: where it runs, and what it says goes to.

    Attributes:
        device: a torch device's name.
        toy: tiny sizes.
        part: name of the part.
        until: seconds after the beginning when it has to have ended.
        out: folder of the rows.
    """

    device: str
    toy: bool
    part: str
    until: float
    out: Path

    def left(self) -> float:
        return self.until - (time.time() - BEGIN)

    def add(self, **row: Any) -> None:
        """Append a row, at once and in one write."""
        line = {"part": self.part, "at": round(time.time() - BEGIN, 1)} | row
        text = json.dumps({k: v for k, v in line.items() if v is not None}) + "\n"
        file = os.open(self.out / "rows.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, text.encode())
        os.close(file)

    def attempt(self, name: str, measure: Any, **facts: Any) -> bool:
        """Add the row that `measure()` gives, or the error that it raised; return whether it was
        right.
        """
        if self.left() < 0.5:
            self.add(name=name, note="no time", **facts)
            return False
        start = time.perf_counter()
        try:
            row = measure()
        except Exception as error:
            # an error is a row: Triton's and CUDA's derive from Exception alone
            traceback.print_exc()
            row = {
                "ok": False,
                "note": f"{type(error).__name__}: {' '.join(str(error).split())[:240]}",
            }
        self.add(name=name, **facts, **row, s=round(time.perf_counter() - start, 2))
        return bool(row.get("ok", True))


def work(context: Context, function: str, group: str) -> None:
    """Run a part in this process, which was forked for it."""
    module, name = function.split(".")
    getattr(importlib.import_module(module), name)(context, group)


def start(context: Context, function: str, group: str) -> int:
    """Fork a process that runs a part, and return its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        log = os.open(context.out / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        work(context, function, group)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pids: dict[int, str], context: Context) -> None:
    """Wait until processes have ended; end those that have not three seconds after their time."""
    while pids:
        for pid in list(pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            late = context.left() < -3
            if not ended and not late:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # compilers that it left, too
            if late and not ended:
                context.add(name=pids[pid], ok=False, note="killed: out of time")
            elif code := os.waitstatus_to_exitcode(status):
                context.add(name=pids[pid], ok=False, note=f"ended with {code}: see log.txt")
            del pids[pid]
        time.sleep(0.05)


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def summary(out: Path) -> str:
    """The rows in short: those that are right in one line a part, the others and all figures in
    full.
    """
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    lines = []
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part]
        right = [row for row in mine if row.get("ok") is True]
        lines.append(
            f"{part}: {len(right)} right, {sum(row.get('ok') is False for row in mine)} wrong"
        )
        if right:
            lines.append(
                "  " + "; ".join(f"{row['name']} {short(row.get('error', ''))}" for row in right)
            )
        for row in mine:
            if row.get("ok") is not True:
                cells = (
                    f"{key} {short(value)}"
                    for key, value in row.items()
                    if key not in ("part", "at")
                )
                lines.append("  " + ", ".join(cells)[:300])
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=150, help="when to have ended, imports included"
    )
    parser.add_argument("--only", default="", help="parts, with commas between")
    parser.add_argument("--compiled", action="store_true", help="COMPILED_PARTS instead of PARTS")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rows.jsonl").write_text("")
    parts = COMPILED_PARTS if options.compiled else PARTS
    chosen = [p for p in parts if not options.only or p[0] in options.only.split(",")]
    import torch

    for module in {function.split(".")[0] for _, function, _, _ in chosen}:
        importlib.import_module(module).prepare(options.device)
    gc.collect()
    gc.freeze()  # what is imported is not looked at again, in the children either
    facts = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "used": torch.cuda.is_initialized(),
    }
    Context(options.device, options.toy, "run", 0, options.out).add(name="imported", **facts)
    steps = [
        (part, function, together, weight / (1 if part in TOGETHER else len(groups)))
        for part, function, groups, weight in chosen
        for together in ([groups] if part in TOGETHER else [[group] for group in groups])
    ]
    for i, (part, function, together, weight) in enumerate(steps):
        now = time.time() - BEGIN
        until = now + (options.seconds - 4 - now) * weight / sum(step[3] for step in steps[i:])
        context = Context(options.device, options.toy, part, until, options.out)
        if context.left() > 1:
            wait({start(context, function, group): group for group in together}, context)
        else:
            context.add(name=", ".join(together), note="no time")
    print(summary(options.out)[:9000])


if __name__ == "__main__":
    main()
