"""Calibrate `Hit.confidence`, and measure whether it separates answers from what is off topic.

    python benchmarks/cpu/confidence.py --set INDEX QUESTIONS [--set INDEX QUESTIONS ...] [--out confidence.json]

QUESTIONS is a file of JSON lines, as it is or with .zst: `query`, `document_id` and `spans`, the characters
`[start, end)` that answer it. A found passage answers if at least half of it, or half of the answer, is in both. Some
of each set's questions are drawn: the best hits of every other one fit the scale (the constants of
`aveyb_retrieval/indexes/search/relevance.py`), the rest measure it, for best hits and for all ten.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize

from aveyb_retrieval import Hit, Retriever
from aveyb_retrieval.indexes.search.scoring import OFFSET, SLOPE
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Sequence

K = 10
OFF_TOPIC = Path(__file__).parents[1] / "off_topic_queries.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs=2, type=Path, action="append", required=True, metavar=("INDEX", "QUESTIONS"))
    parser.add_argument("--questions", type=int, default=400, help="At most N questions of each set.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    off_topic = OFF_TOPIC.read_text(encoding="utf-8").splitlines()
    fit, test, sets = [], [], []
    for index, questions in args.set:
        rows = [record for _, record in read_records(questions)]
        rows = random.Random(0).sample(rows, min(args.questions, len(rows)))
        with Retriever.load(index) as retriever:
            found = [judged(row, retriever.search(row["query"], K, unit="passage", fold=False)) for row in rows]
            strange = [retriever.search(query, 1, unit="passage")[0].score for query in off_topic]
        fit += found[::2]
        test += found[1::2]
        sets.append({"index": index.name, "questions": len(rows), **separation(found, strange)})
        print(json.dumps(sets[-1]))
    slope, offset = fitted(np.concatenate([rows[:1] for rows in fit]))
    tables = {
        "best_hits": reliability(np.concatenate([rows[:1] for rows in test]), slope, offset),
        "all_hits": reliability(np.concatenate(test), slope, offset),
    }
    result = {"sets": sets, "slope": SLOPE * slope, "offset": OFFSET * slope + offset, **tables}
    print(json.dumps({"slope": result["slope"], "offset": result["offset"]}))
    for name, table in tables.items():
        for row in table:
            print(name, json.dumps(row))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def judged(question: dict[str, Any], hits: Sequence[Hit]) -> np.ndarray:
    """Rows (score, 1 if the passage answers) of the hits of one question, best first."""
    return np.array([(hit.score, answers(question, hit)) for hit in hits], dtype=np.float64).reshape(-1, 2)


def answers(question: dict[str, Any], hit: Hit) -> bool:
    """Whether at least half of the passage, or of the answer, is in both."""
    if hit.id != question["document_id"] or hit.span is None:
        return False
    start, stop = hit.span
    common = sum(max(0, min(stop, b) - max(start, a)) for a, b in question["spans"])
    return 2 * common >= min(stop - start, sum(b - a for a, b in question["spans"]))


def separation(found: Sequence[np.ndarray], strange: Sequence[float]) -> dict[str, float]:
    """AUC of the best hit's score: questions, and questions whose best hit answers, against what is off topic."""
    best = np.array([rows[0] for rows in found if len(rows)])
    return {
        "best_hit_answers": round(float(best[:, 1].mean()), 4),
        "auc_questions": round(auc(best[:, 0], np.array(strange)), 4),
        "auc_right_answers": round(auc(best[best[:, 1] > 0, 0], np.array(strange)), 4),
        "off_topic_median": round(float(np.median(strange)), 4),
        "off_topic_highest": round(float(np.max(strange)), 4),
    }


def auc(higher: np.ndarray, lower: np.ndarray) -> float:
    """Chance that one of `higher` is above one of `lower`; half for a tie."""
    difference = higher[:, None] - lower[None, :]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def fitted(rows: np.ndarray) -> tuple[float, float]:
    """Fit `1 / (1 + exp(-(slope * logit(score) + offset)))` to rows (score, label) by maximum likelihood."""
    x, label = logit(rows[:, 0]), rows[:, 1]

    def loss(weights: np.ndarray) -> float:
        z = weights[0] * x + weights[1]
        return float((np.logaddexp(0, z) - label * z).mean())

    slope, offset = minimize(loss, [1.0, 0.0]).x
    return float(slope), float(offset)


def reliability(rows: np.ndarray, slope: float, offset: float) -> list[dict[str, float]]:
    """Compare the fitted confidence with the share that answers, by tenths of the scale."""
    confidence = 1 / (1 + np.exp(-(slope * logit(rows[:, 0]) + offset)))
    tenths = np.minimum((confidence * 10).astype(int), 9)
    return [
        {
            "from": tenth / 10,
            "hits": int((tenths == tenth).sum()),
            "confidence": round(float(confidence[tenths == tenth].mean()), 3),
            "answer": round(float(rows[tenths == tenth, 1].mean()), 3),
        }
        for tenth in np.unique(tenths).tolist()
    ]


def logit(p: np.ndarray) -> np.ndarray:
    """The inverse of the logistic function."""
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return np.log(p / (1 - p))


if __name__ == "__main__":
    main()
