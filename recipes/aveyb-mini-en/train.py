"""Train the embedded model: teacher vectors, teacher scores and pairs, with sentence-transformers' trainer.

Needs what prepare.py and teacher_vectors.py wrote. Leaves a run folder with the model, its settings and its metrics.
`torchrun --nproc-per-node 2 train.py ...` shares every batch between two processes of one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from pair_distillation import PairDistillationLoss
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from sources import PROMPT
from token_embeddings import token_embeddings_from_teacher
from tokenizers import Tokenizer

import aveyb_retrieval  # noqa: F401  (registers the architecture)
from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.training.sentence_trainer import train_sentence_model
from aveyb_retrieval.training.settings import RunSettings
from aveyb_retrieval.training.teacher import load_teacher, read_vectors
from aveyb_retrieval.training.texts import fingerprint, read_records

HELD_OUT = 60  # one pair in so many is kept aside, whatever else is in the data, to compare settings
WORDS = 4  # of single words, the whole model sees one in so many: the token embedding alone has learnt them all
RANK = int(os.environ.get("RANK", "0"))
LOWER = 3  # one text in so many is seen in lower case: the teacher makes no difference, and questions often are
KIN = {  # batch-mates are the negatives of a pair, and those from afar are too easy
    "health": ["medquad", "scifact"],
    "long": ["qmsum-long", "openstax-ccby-long"],
    "stories": ["100_english_novels", "eltec_eng"],
    "law": ["dc_code"],
    "synthetic": ["synthetic"],
    "windows": ["ms_cpp_docs", "ms_powershell_docs", "ms_win32", "ms_windows_driver_docs"],
    "open source": ["ethereum_eips", "kubernetes_keps", "php_manual", "python_peps", "rust_rfcs"],
}


@dataclass(frozen=True)
class Options:
    """The command's options; `main` says what each is."""

    data: Path
    vocabulary: Path
    teacher: str
    out: Path
    config: str
    student: str
    embedding: Path | None
    embedding_scale: float
    branch_scale: float
    steps: int
    batch: int
    lr: float
    weights: list[float]
    temperature: float
    threads: int
    seed: int
    save_steps: int
    resume: bool


@dataclass(frozen=True)
class Aside:
    """A pair that is kept aside: its texts as the student meets them, and the rows of their teacher vectors."""

    anchor: str
    positive: str
    anchor_row: int
    positive_row: int


@dataclass(frozen=True)
class Rows:
    """The training sets, the teacher's vectors with those of the joined texts at the end, and the pairs kept aside."""

    sets: dict[str, Dataset]
    vectors: np.ndarray
    aside: list[Aside]


def start(options: Options, tokenizer: AveyBTokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Load the token embedding and the head of an earlier stage, or make them of the teacher's word vectors."""
    path = options.embedding or options.out.parent / "teacher_words.npz"
    if not path.exists():
        counts = sum(np.bincount(tokenizer.encode_ids(t), minlength=tokenizer.vocab_size) for t in texts)
        teacher, _ = load_teacher(options.teacher, device="cpu", max_tokens=256)
        embedding, head = token_embeddings_from_teacher(
            tokenizer, teacher, 256, counts=np.asarray(counts), precision="bfloat16"
        )
        np.savez(path, embedding=embedding, head=head)
    with np.load(path, allow_pickle=False) as saved:
        return saved["embedding"], saved["head"]


def start_folder(options: Options) -> Path:
    """Return the folder of the untrained student; every process has its own."""
    return options.out / f"start-{RANK}"


def static_student(options: Options, tokenizer: AveyBTokenizer, embedding: np.ndarray) -> SentenceTransformer:
    """Make the mean of token embeddings, nothing else: cheap enough to see the data many times."""
    tokenizer.save(start_folder(options))
    weights = embedding / embedding.std() * options.embedding_scale
    fast = Tokenizer.from_file(str(start_folder(options) / "tokenizer.json"))
    fast.encode_special_tokens = True
    return SentenceTransformer(modules=[StaticEmbedding(fast, embedding_weights=weights), Normalize()], device="cpu")


def avey_student(options: Options, tokenizer: AveyBTokenizer, embedding: np.ndarray) -> SentenceTransformer:
    """Make a model that starts as the mean of its token embeddings: compressor and layers add next to nothing."""
    torch.manual_seed(options.seed)
    model = AveyBModel(AveyBConfig.mini(vocab_size=tokenizer.vocab_size, **json.loads(options.config)))
    with torch.no_grad():
        model.embed.weight.copy_(torch.from_numpy(embedding / embedding.std() * options.embedding_scale))
        model.ranker.down_proj.mul_(options.branch_scale)
        for layer in model.layers:
            layer.fuser.weight.mul_(options.branch_scale)
    prompts = {"query": PROMPT, "document": PROMPT}
    return sentence_transformer(model, tokenizer, start_folder(options), prompts=prompts)


def as_seen(text: str) -> str:
    """Return a text as the student meets it."""
    return PROMPT + (text.lower() if zlib.crc32(text.encode()) % LOWER == 0 else text)


def rows_of(options: Options, texts: list[str], kinds: list[str], vectors: np.ndarray) -> Rows:
    """Group the texts that have a teacher vector into training sets."""
    known = len(vectors)
    seen = [as_seen(text) for text in texts]
    kin = {source: name for name, sources in KIN.items() for source in sources}
    pairs, aside = [], []
    for _, pair in read_records(options.data / "pairs.jsonl"):
        if max(pair["anchor"], pair["positive"]) < known:
            chosen = zlib.crc32(texts[pair["anchor"]].encode()) % HELD_OUT == 0
            (aside if chosen else pairs).append(pair)
    hidden = {p["positive"] for p in aside}
    pairs = [p for p in pairs if p["positive"] not in hidden]

    joined: list[dict[str, Any]] = []
    means: list[np.ndarray] = []
    for _, record in read_records(options.data / "longs.jsonl"):
        passages = record["passages"]
        if max(passages) >= known or hidden & set(passages):
            continue
        mean = vectors[passages].astype(np.float32).sum(0)
        joined.append({"text": PROMPT + "\n\n".join(texts[i] for i in passages), "label": [known + len(means)]})
        means.append(mean / np.linalg.norm(mean))
    used = {i for p in pairs for i in (p["anchor"], p["positive"])} | hidden | {p["anchor"] for p in aside}
    words = [i for i in range(known) if kinds[i].endswith("word")]
    if options.student == "avey":
        used |= {i for i in words if zlib.crc32(texts[i].encode()) % WORDS}
    single = [i for i in range(known) if i not in used]
    short = [i for i in single if len(texts[i]) < 150]
    rest = [i for i in single if len(texts[i]) >= 150]
    groups: dict[str, list[dict[str, Any]]] = {f"pairs: {name}": [] for name in KIN}
    for p in pairs:
        rows = [p["anchor"], p["positive"]]
        row = {"anchor": seen[rows[0]], "positive": seen[rows[1]], "label": rows}
        groups[f"pairs: {kin[p['source']]}"].append(row)
    groups["short"] = [{"text": seen[i], "label": [i]} for i in short]
    groups["passages"] = [{"text": seen[i], "label": [i]} for i in rest]
    groups["long"] = joined
    sets = {name: Dataset.from_list(rows) for name, rows in groups.items() if len(rows) >= options.batch}
    extended = np.concatenate([vectors, np.asarray(means, dtype=np.float16)])
    kept = [Aside(seen[p["anchor"]], seen[p["positive"]], p["anchor"], p["positive"]) for p in aside]
    return Rows(sets, extended, kept)


def held_out_scores(model: SentenceTransformer, rows: Rows) -> dict[str, float]:
    """Measure how well anchors find their own passage among all kept aside, and how the scores follow the teacher's."""
    anchors = model.encode([pair.anchor for pair in rows.aside], batch_size=128, show_progress_bar=False)
    passages = model.encode([pair.positive for pair in rows.aside], batch_size=32, show_progress_bar=False)
    scores = anchors @ passages.T
    ranks = (scores > scores.diagonal()[:, None]).sum(1)
    asked, known = (
        rows.vectors[numbers].astype(np.float32)
        for numbers in ([pair.anchor_row for pair in rows.aside], [pair.positive_row for pair in rows.aside])
    )
    teacher = asked @ known.T
    follow = [np.corrcoef(s, t)[0, 1] for s, t in zip(scores, teacher, strict=True)]
    return {
        "held_out_mrr": float((1 / (1 + ranks)).mean()),
        "held_out_correlation": float(np.mean(follow)),
        "teacher_mrr": float((1 / (1 + (teacher > teacher.diagonal()[:, None]).sum(1))).mean()),
    }


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", default="{}", help="JSON: fields of AveyBConfig that differ from mini")
    parser.add_argument("--student", choices=["static", "avey"], default="avey")
    parser.add_argument("--embedding", type=Path, help="embedding.npz of an earlier stage")
    parser.add_argument("--embedding-scale", type=float, default=1.0, help="standard deviation of the embedding")
    parser.add_argument("--branch-scale", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weights", type=float, nargs=3, default=[10.0, 1.0, 0.5], help="vectors, scores, pairs")
    parser.add_argument("--temperature", type=float, default=0.15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--resume", action="store_true")
    options = Options(**vars(parser.parse_args()))
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)

    records = [record for _, record in read_records(options.data / "texts.jsonl")]
    texts, kinds = [r["text"] for r in records], [r["kind"] for r in records]
    vectors = read_vectors(options.data / "teacher", allow_partial=True)
    rows = rows_of(options, texts, kinds, vectors)
    tokenizer = AveyBTokenizer.load(options.vocabulary)
    embedding, head = start(options, tokenizer, texts)
    model = (static_student if options.student == "static" else avey_student)(options, tokenizer, embedding)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count:,} parameters; rows:", {name: len(found) for name, found in rows.sets.items()}, flush=True)
    before = held_out_scores(model, rows)
    print("before", before, flush=True)
    vector_weight, score_weight, pair_weight = options.weights
    loss = PairDistillationLoss(
        model,
        rows.vectors,
        vector_weight=vector_weight,
        score_weight=score_weight,
        pair_weight=pair_weight,
        temperature=options.temperature,
        head=head,
    )
    settings = RunSettings(
        steps=options.steps,
        batch_size=options.batch,
        learning_rate=options.lr,
        schedule="cosine",
        warmup=0.05,
        betas=(0.9, 0.98),
        eps=1e-8,
        weight_decay=0.01,
        seed=options.seed,
        save_every=options.save_steps,
    )
    recorded = {name: getattr(options, name) for name in ("student", "config", "weights", "temperature")}
    train_sentence_model(
        model,
        rows.sets,
        loss,
        options.out,
        title=f"aveyb-mini-en, {options.student} student",
        data={name: fingerprint(options.data / name) for name in ("texts.jsonl", "pairs.jsonl", "longs.jsonl")},
        settings=settings,
        recorded=recorded,
        tokenizer=tokenizer,
        resume=options.resume,
        device="cpu",
    )
    if RANK:
        return
    after = held_out_scores(model, rows)
    print("after", after, flush=True)
    (options.out / "result.json").write_text(json.dumps({"before": before, "after": after, "parameters": count}) + "\n")
    weights = model[0].embedding.weight if options.student == "static" else model[0].auto_model.embed.weight
    np.savez(options.out / "embedding.npz", embedding=weights.detach().numpy(), head=loss.head.weight.detach().numpy())


if __name__ == "__main__":
    main()
