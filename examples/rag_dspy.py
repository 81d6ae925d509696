"""Retrieval-augmented generation with DSPy: `pip install dspy`.

    python examples/rag_dspy.py my-index "when is the rent due?" --url http://localhost:8080/v1
    --model local

Any server that speaks OpenAI's protocol will do; a key is taken from OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import os

# before the import: prices are not asked for
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy

from aveyb_retrieval import Retriever, hits_to_prompt


class Answer(dspy.Module):
    """Finds passages and answers from them."""

    def __init__(self, index: str) -> None:
        super().__init__()
        self.retriever = Retriever.load(index)
        self.answer = dspy.Predict("passages, question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        hits = self.retriever.search(question, k=5, unit="passage")
        found = self.answer(passages=hits_to_prompt(hits), question=question)
        return dspy.Prediction(answer=found.answer, sources=[hit.id for hit in hits])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("index", help="an index directory")
    parser.add_argument("question")
    parser.add_argument(
        "--url", required=True, help="where the language model's server is, up to /v1"
    )
    parser.add_argument(
        "--model", required=True, help="the name that the server knows the model by"
    )
    args = parser.parse_args()

    key = os.environ.get("OPENAI_API_KEY", "none")
    dspy.configure(lm=dspy.LM(f"openai/{args.model}", api_base=args.url, api_key=key, cache=False))
    found = Answer(args.index)(question=args.question)
    print(found.answer)
    print(*found.sources, sep="\n")


if __name__ == "__main__":
    main()
