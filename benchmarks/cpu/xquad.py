"""NDCG@10 in the languages of XQuAD: words, the default search and vectors, of two models.

    python benchmarks/cpu/xquad.py FOLDER [--every 3] [--models default languages]

FOLDER holds LANGUAGE.json for each language: `paragraphs` (documents) and `questions` (`text`, and
`paragraph`, the id of the one that answers). Nothing is said to the build about languages. The last
columns ask English questions on the paragraphs of each language.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from aveyb_retrieval import Retriever, build_index

RESULTS = Path(__file__).parents[1] / "results" / "xquad.json"
SEARCHES = {"words": "lexical", "default": "hybrid", "vectors": "dense"}
DEPTH = 10


def ndcg(retriever: Retriever, questions: list[dict[str, Any]], mode: str) -> float:
    """Return the mean NDCG@10 of questions with one relevant paragraph each."""
    total = 0.0
    for hits, question in zip(
        retriever.search([q["text"] for q in questions], k=DEPTH, mode=mode), questions, strict=True
    ):
        ids = [hit.id for hit in hits]
        if question["paragraph"] in ids:
            total += 1.0 / math.log2(ids.index(question["paragraph"]) + 2)
    return total / len(questions)


def measure(folder: Path, models: list[str], every: int) -> list[dict[str, Any]]:
    """Return a row for each model and language."""
    corpora = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    rows = []
    with tempfile.TemporaryDirectory() as top:
        for model in models:
            for language, corpus in sorted(corpora.items()):
                place = Path(top, f"{Path(model).name}-{language}")
                loaded_by = None if model == "default" else model
                build_index(corpus["paragraphs"], place, model=loaded_by)
                questions = corpus["questions"][::every]
                english = corpora["en"]["questions"][::every]
                with Retriever.load(place) as retriever:
                    row: dict[str, Any] = {"model": model, "language": language}
                    row |= {"paragraphs": len(retriever), "questions": len(questions)}
                    row |= {name: ndcg(retriever, questions, m) for name, m in SEARCHES.items()}
                    row["english vectors"] = ndcg(retriever, english, "dense")
                    row["english default"] = ndcg(retriever, english, "hybrid")
                rows.append(row)
                print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=3, help="take every n-th question")
    parser.add_argument("--models", nargs="+", default=["default", "languages"])
    options = parser.parse_args()
    rows = measure(options.folder, options.models, options.every)
    RESULTS.write_text(json.dumps({"every": options.every, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
