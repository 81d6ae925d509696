"""Train the embedded model: teacher vectors, teacher scores and pairs, with sentence-transformers' trainer.

Needs what prepare.py and teacher_vectors.py wrote. Leaves a run folder with the model, its settings and its metrics.
`torchrun --nproc-per-node 2 train.py ...` shares every batch between two processes of one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from sources import PROMPT
from tokenizers import Tokenizer

import aveyb_retrieval  # noqa: F401  (registers the architecture)
from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.training.distill import DistillationLoss, token_embeddings_from_teacher
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


def start(args: argparse.Namespace, tokenizer: AveyBTokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The token embedding and the head to begin with: from an earlier stage, or from the teacher's word vectors."""
    path = args.embedding or args.out.parent / "teacher_words.npz"
    if not path.exists():
        counts = sum(np.bincount(tokenizer.encode_ids(t), minlength=tokenizer.vocab_size) for t in texts)
        teacher, _ = load_teacher(args.teacher, device="cpu", max_tokens=256)
        embedding, head = token_embeddings_from_teacher(
            tokenizer, teacher, 256, counts=np.asarray(counts), precision="bfloat16"
        )
        np.savez(path, embedding=embedding, head=head)
    with np.load(path, allow_pickle=False) as saved:
        return saved["embedding"], saved["head"]


def start_folder(args: argparse.Namespace) -> Path:
    """Where the untrained student is laid out; every process has its own."""
    return Path(args.out) / f"start-{RANK}"


def static_student(args: argparse.Namespace, tokenizer: AveyBTokenizer, embedding: np.ndarray) -> SentenceTransformer:
    """The mean of token embeddings, nothing else: cheap enough to see the data many times."""
    tokenizer.save(start_folder(args))
    weights = embedding / embedding.std() * args.embedding_scale
    fast = Tokenizer.from_file(str(start_folder(args) / "tokenizer.json"))
    fast.encode_special_tokens = True
    return SentenceTransformer(modules=[StaticEmbedding(fast, embedding_weights=weights), Normalize()], device="cpu")


def avey_student(args: argparse.Namespace, tokenizer: AveyBTokenizer, embedding: np.ndarray) -> SentenceTransformer:
    """A model that starts as the mean of its token embeddings: compressor and layers add next to nothing at first."""
    torch.manual_seed(args.seed)
    model = AveyBModel(AveyBConfig.mini(vocab_size=tokenizer.vocab_size, **json.loads(args.config)))
    with torch.no_grad():
        model.embed.weight.copy_(torch.from_numpy(embedding / embedding.std() * args.embedding_scale))
        model.ranker.down_proj.mul_(args.branch_scale)
        for layer in model.layers:
            layer.fuser.weight.mul_(args.branch_scale)
    prompts = {"query": PROMPT, "document": PROMPT}
    return sentence_transformer(model, tokenizer, start_folder(args), prompts=prompts)


def as_seen(text: str) -> str:
    """A text as the student meets it."""
    return PROMPT + (text.lower() if zlib.crc32(text.encode()) % LOWER == 0 else text)


def rows_of(
    args: argparse.Namespace, texts: list[str], kinds: list[str], vectors: np.ndarray
) -> tuple[dict[str, Dataset], np.ndarray, Any]:
    """The training sets, the teacher's vectors with those of the joined texts behind them, and the pairs kept aside."""
    known = len(vectors)
    seen = [as_seen(text) for text in texts]
    kin = {source: name for name, sources in KIN.items() for source in sources}
    pairs, aside = [], []
    for _, pair in read_records(args.data / "pairs.jsonl"):
        if max(pair["anchor"], pair["positive"]) < known:
            chosen = zlib.crc32(texts[pair["anchor"]].encode()) % HELD_OUT == 0
            (aside if chosen else pairs).append(pair)
    hidden = {p["positive"] for p in aside}
    pairs = [p for p in pairs if p["positive"] not in hidden]

    joined: list[dict[str, Any]] = []
    means: list[np.ndarray] = []
    for _, record in read_records(args.data / "longs.jsonl"):
        passages = record["passages"]
        if max(passages) >= known or hidden & set(passages):
            continue
        mean = vectors[passages].astype(np.float32).sum(0)
        joined.append({"text": PROMPT + "\n\n".join(texts[i] for i in passages), "label": [known + len(means)]})
        means.append(mean / np.linalg.norm(mean))
    used = {i for p in pairs for i in (p["anchor"], p["positive"])} | hidden | {p["anchor"] for p in aside}
    words = [i for i in range(known) if kinds[i].endswith("word")]
    if args.student == "avey":
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
    sets = {name: Dataset.from_list(rows) for name, rows in groups.items() if len(rows) >= args.batch}
    extended = np.concatenate([vectors, np.asarray(means, dtype=np.float16)])
    return sets, extended, [(seen[p["anchor"]], seen[p["positive"]], p["anchor"], p["positive"]) for p in aside]


def held_out_scores(model: SentenceTransformer, aside: Any, vectors: np.ndarray) -> dict[str, float]:
    """How well anchors find their own passage among all kept aside, and how the scores follow the teacher's."""
    anchors = model.encode([a for a, _, _, _ in aside], batch_size=128, show_progress_bar=False)
    passages = model.encode([p for _, p, _, _ in aside], batch_size=32, show_progress_bar=False)
    scores = anchors @ passages.T
    ranks = (scores > scores.diagonal()[:, None]).sum(1)
    teacher = (
        vectors[[a for _, _, a, _ in aside]].astype(np.float32) @ vectors[[p for *_, p in aside]].astype(np.float32).T
    )
    follow = [np.corrcoef(s, t)[0, 1] for s, t in zip(scores, teacher, strict=True)]
    return {
        "held_out_mrr": float((1 / (1 + ranks)).mean()),
        "held_out_correlation": float(np.mean(follow)),
        "teacher_mrr": float((1 / (1 + (teacher > teacher.diagonal()[:, None]).sum(1))).mean()),
    }


def main() -> None:
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
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)

    records = [record for _, record in read_records(args.data / "texts.jsonl")]
    texts, kinds = [r["text"] for r in records], [r["kind"] for r in records]
    vectors = read_vectors(args.data / "teacher", allow_partial=True)
    sets, extended, aside = rows_of(args, texts, kinds, vectors)
    tokenizer = AveyBTokenizer.load(args.vocabulary)
    embedding, head = start(args, tokenizer, texts)
    model = (static_student if args.student == "static" else avey_student)(args, tokenizer, embedding)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count:,} parameters; rows:", {name: len(rows) for name, rows in sets.items()}, flush=True)
    before = held_out_scores(model, aside, vectors)
    print("before", before, flush=True)
    vector_weight, score_weight, pair_weight = args.weights
    loss = DistillationLoss(
        model,
        extended,
        vector_weight=vector_weight,
        score_weight=score_weight,
        pair_weight=pair_weight,
        temperature=args.temperature,
        head=head,
    )
    settings = RunSettings(
        steps=args.steps,
        batch_size=args.batch,
        learning_rate=args.lr,
        schedule="cosine",
        warmup=0.05,
        betas=(0.9, 0.98),
        eps=1e-8,
        weight_decay=0.01,
        seed=args.seed,
        save_every=args.save_steps,
    )
    recorded = {name: getattr(args, name) for name in ("student", "config", "weights", "temperature")}
    train_sentence_model(
        model,
        sets,
        loss,
        args.out,
        title=f"aveyb-mini-en, {args.student} student",
        data={name: fingerprint(args.data / name) for name in ("texts.jsonl", "pairs.jsonl", "longs.jsonl")},
        settings=settings,
        recorded=recorded,
        tokenizer=tokenizer,
        resume=args.resume,
        device="cpu",
    )
    if RANK:
        return
    after = held_out_scores(model, aside, vectors)
    print("after", after, flush=True)
    (args.out / "result.json").write_text(json.dumps({"before": before, "after": after, "parameters": count}) + "\n")
    weights = model[0].embedding.weight if args.student == "static" else model[0].auto_model.embed.weight
    np.savez(args.out / "embedding.npz", embedding=weights.detach().numpy(), head=loss.head.weight.detach().numpy())


if __name__ == "__main__":
    main()
