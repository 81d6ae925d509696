"""Retrieval-augmented generation with LlamaIndex, without a network: `pip install
'aveyb-retrieval[llama-index]'`.

    python examples/rag_llama_index.py

The language model is LlamaIndex's mock, which repeats its prompt: put your own in its place.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

from aveyb_retrieval import build_index
from aveyb_retrieval.integrations.llama_index import AveyBRetriever

DOCUMENTS = [
    {
        "_id": "lease",
        "title": "Lease",
        "text": "The tenant may end the lease with three months' notice.",
        "year": 2021,
    },
    {
        "_id": "manual",
        "title": "Pump manual",
        "text": "Close the valve before opening the filter.",
        "year": 2019,
    },
    {
        "_id": "minutes",
        "title": "Minutes",
        "text": "The budget was moved to the next meeting.",
        "year": 2023,
    },
]
QUESTION = "how long is the notice period of the lease?"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        build_index(DOCUMENTS, index)
        retriever = AveyBRetriever(index, similarity_top_k=2)
        engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
        response = engine.query(QUESTION)
        print(response)
        for source in response.source_nodes:
            node = source.node
            print(
                f"{source.score:.3f}  {node.ref_doc_id}  {node.start_char_idx}-{node.end_char_idx} "
                f" {node.text}"
            )


if __name__ == "__main__":
    main()
