"""Words of running text that encoders read on a CPU: our model in each form beside all-MiniLM-L6-v2
in each form.

    python benchmarks/cpu/encode_words.py --data ../shared/data/openstax-ccby-long python
    benchmarks/cpu/encode_words.py --data ... --systems int8 float32 --threads 1 --seconds 2   # a
    quick look python benchmarks/cpu/encode_words.py --data ... --minutes 30 --quiet       # nothing
    else runs on this machine

Texts in, vectors out, tokenizing included, all systems on the same texts of 128 to 8,192 of our
tokens. Each system runs in a process of its own with one or two threads; processes take turns in
several rounds, and a figure is the best round's. `--minutes` takes the place of the number of
rounds: there are as many as fit, and at least one. Words are counted per second of processor time,
which other work on the machine changes less than the time of the clock, and per second of the
clock. MiniLM reads 256 tokens at once, so it gets longer texts in pieces of 180 words; its ONNX
forms are exported here and quantized as is usual (`onnxruntime.quantization.quantize_dynamic`).
Queries of 10 and 200 tokens: the median and the 99th percentile of single ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.embedders.loading import minilm_folder
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTHS = (128, 512, 2048, 8192)
QUERIES = (10, 200)
OURS = ("int8", "float32", "bfloat16")
MINILM = ("minilm torch", "minilm onnx float32", "minilm onnx int8")
PIECE, WINDOW = 180, 256  # words, tokens
BATCH = 32
RESULTS = Path(__file__).parents[1] / "results" / "encode_words.json"


def export_minilm(folder: Path) -> None:
    """Write MiniLM as `float32.onnx` and `int8.onnx`."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    model = AutoModel.from_pretrained(minilm_folder(), attn_implementation="eager").eval()

    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    example = torch.ones(2, 16, dtype=torch.int64)
    axes = {0: "n", 1: "T"}
    torch.onnx.export(
        Tokens(),
        (example, example),
        str(folder / "float32.onnx"),
        input_names=["ids", "mask"],
        output_names=["tokens"],
        dynamic_axes={"ids": axes, "mask": axes, "tokens": axes},
        opset_version=17,
        dynamo=False,
    )
    quantize_dynamic(folder / "float32.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8)


def minilm_onnx(path: Path, threads: int) -> Any:
    """MiniLM by ONNX Runtime and the library tokenizers, batches of texts of similar length."""
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(WINDOW)
    tokenizer.enable_padding()

    def encode(texts: Sequence[str]) -> np.ndarray:
        order, found = sorted(range(len(texts)), key=lambda i: -len(texts[i])), []
        for start in range(0, len(texts), BATCH):
            rows = tokenizer.encode_batch([texts[i] for i in order[start : start + BATCH]])
            ids, mask = (
                np.array([getattr(row, name) for row in rows]) for name in ("ids", "attention_mask")
            )
            tokens = session.run(None, {"ids": ids, "mask": mask})[0]
            sums = (tokens * mask[..., None]).sum(1)
            found.append(sums / np.linalg.norm(sums, axis=1, keepdims=True))
        return np.concatenate(found)[np.argsort(order)]

    return encode


def system(name: str, threads: int, folder: Path) -> tuple[Any, Any]:
    """Return what encodes documents and what encodes queries."""
    if name in OURS:
        embedder = Embedder.load(precision=name)
        return (
            lambda texts: list(embedder.encode_documents(("", text) for text in texts)),
            embedder.encode_queries,
        )
    if name == "minilm torch":
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(minilm_folder()), device="cpu")
        encode = model.encode
    else:
        encode = minilm_onnx(folder / f"{name.split()[-1]}.onnx", threads)
    return lambda texts: encode([piece for text in texts for piece in pieces(text)]), encode


def pieces(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[i : i + PIECE]) for i in range(0, len(words), PIECE)]


def worker(name: str, threads: int, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure one system for one round."""
    if name in OURS[1:] or name == "minilm torch":
        import torch

        torch.set_num_threads(threads)
    documents, queries = system(name, threads, folder)
    texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    row: dict[str, Any] = {"words_per_processor_second": {}, "words_per_second": {}, "query_ms": {}}
    for length in map(str, LENGTHS):
        words = sum(len(text.split()) for text in texts[length])
        documents(texts[length][:2])
        processor, clock, runs = time.process_time(), time.perf_counter(), 0
        while not runs or time.perf_counter() - clock < seconds:
            documents(texts[length])
            runs += 1
        row["words_per_processor_second"][length] = runs * words / (time.process_time() - processor)
        row["words_per_second"][length] = runs * words / (time.perf_counter() - clock)
    for length in map(str, QUERIES):
        times = []
        for text in texts[f"query {length}"] * 4:
            start = time.perf_counter()
            queries([text])
            times.append(1e3 * (time.perf_counter() - start))
        row["query_ms"][length] = {
            "p50": float(np.percentile(times, 50)),
            "p99": float(np.percentile(times, 99)),
        }
    return row


def write_texts(data: Path, folder: Path, tokens: int) -> None:
    """Cut a corpus into texts of each length, in our tokens; about so many tokens of each."""
    tokenizer = read_vocabulary(DEFAULT_MODEL)
    lines = (json.loads(line) for line in (data / "corpus.jsonl").open(encoding="utf-8"))
    long = [text for text in (line["text"] for line in lines) if len(text) > 45_000][:20]
    spans = [tokenizer.encode(text[:45_000])[1] for text in long]
    kinds = {
        **{str(n): (n, max(1, tokens // n)) for n in LENGTHS},
        **{f"query {n}": (n, 25) for n in QUERIES},
    }
    cut: dict[str, list[str]] = {}
    for kind, (length, count) in kinds.items():
        cut[kind] = [
            text[starts[at, 0] : starts[at + length - 1, 1]]
            for text, starts in zip(long, spans, strict=True)
            for at in range(0, len(starts) - length, length)
        ][:count]
    (folder / "texts.json").write_text(json.dumps(cut), encoding="utf-8")


def best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The best round of each figure."""
    speeds = {
        kind: {length: max(row[kind][length] for row in rounds) for length in rounds[0][kind]}
        for kind in ("words_per_processor_second", "words_per_second")
    }
    queries = {
        length: {
            point: min(row["query_ms"][length][point] for row in rounds) for point in ("p50", "p99")
        }
        for length in rounds[0]["query_ms"]
    }
    return {**speeds, "query_ms": queries}


def instructions() -> list[str]:
    """The processor's, of those that decide how int8 is multiplied."""
    flags = next(
        (
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("flags")
        ),
        "",
    )
    return [
        name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni") if name in flags.split()
    ]


def write(
    path: Path, found: dict[tuple[str, int], list[dict[str, Any]]], said: dict[str, Any]
) -> None:
    """Write what has been measured so far."""
    report = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "instructions": instructions(),
            **{name: version(name) for name in ("onnxruntime", "torch", "sentence-transformers")},
            **said,
        },
        "rows": [
            {"system": name, "threads": threads, **best(rounds)}
            for (name, threads), rounds in found.items()
        ],
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of a BEIR-layout set with long documents")
    parser.add_argument("--systems", nargs="+", choices=[*OURS, *MINILM], default=[*OURS, *MINILM])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes",
        type=float,
        help="begin no measurement later than this, but for the first round",
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of the clock for each length in a round"
    )
    parser.add_argument("--tokens", type=int, default=16384, help="in all texts of one length")
    parser.add_argument(
        "--quiet", action="store_true", help="the machine is: pages show times of the clock, too"
    )
    parser.add_argument("--note", default="", help="about the machine, kept with the results")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, threads, folder = args.worker
        print(json.dumps(worker(name, int(threads), Path(folder), args.seconds)))
        return

    workers = [(name, threads) for name in args.systems for threads in args.threads]
    rounds, deadline = range(args.rounds), float("inf")
    if args.minutes is not None:
        args.seconds = min(args.seconds, 60 * args.minutes / 2 / len(workers) / len(LENGTHS))
        rounds, deadline = range(sys.maxsize), time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_texts(args.data, folder, args.tokens)
        if any("onnx" in name for name in args.systems):
            export_minilm(folder)
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for number, (name, threads) in (
            (number, worker) for number in rounds for worker in workers
        ):
            if number and time.monotonic() > deadline:
                break
            command = [sys.executable, __file__, "--worker", name, str(threads), temporary]
            command += ["--seconds", str(args.seconds)]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, check=True, text=True
            )
            found.setdefault((name, threads), []).append(json.loads(done.stdout.splitlines()[-1]))
            print(number, name, threads, done.stdout.splitlines()[-1], flush=True)
            write(args.json, found, {"note": args.note, "quiet": args.quiet})


if __name__ == "__main__":
    main()
