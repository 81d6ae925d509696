"""Retrieval-augmented generation with Haystack, without a network: `pip install
'aveyb-retrieval[haystack]'`.

    python examples/rag_haystack.py

The language model is Haystack's mock, which repeats its prompt: put your own in its place.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# before the import: nothing is sent anywhere
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")

from haystack import Document, Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import MockChatGenerator
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ChatMessage

from aveyb_retrieval.integrations.haystack import AveyBDocumentStore, AveyBRetriever

DOCUMENTS = [
    Document(
        content="The tenant may end the lease with three months' notice.",
        meta={"title": "Lease", "year": 2021},
    ),
    Document(
        content="Close the valve before opening the filter.",
        meta={"title": "Pump manual", "year": 2019},
    ),
    Document(
        content="The budget was moved to the next meeting.", meta={"title": "Minutes", "year": 2023}
    ),
]
QUESTION = "how long is the notice period of the lease?"
TEMPLATE = """Answer from these passages only.
{% for document in documents %}
[{{ loop.index }}] {{ document.meta.title.split() | join(" ") }}
    {{ document.content | indent }}
{% endfor %}

Question: {{ question }}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = AveyBDocumentStore(str(Path(folder) / "index"))
        writing = Pipeline()  # no splitter and no embedder: the index encodes whole documents
        writing.add_component("writer", DocumentWriter(store))
        writing.run({"writer": {"documents": DOCUMENTS}})

        asking = Pipeline()
        asking.add_component(
            "retriever", AveyBRetriever(store, top_k=2, search_options={"unit": "passage"})
        )
        asking.add_component(
            "prompt", ChatPromptBuilder([ChatMessage.from_user(TEMPLATE)], required_variables="*")
        )
        asking.add_component("model", MockChatGenerator())
        asking.connect("retriever.documents", "prompt.documents")
        asking.connect("prompt.prompt", "model.messages")
        found = asking.run({"retriever": {"query": QUESTION}, "prompt": {"question": QUESTION}})
        print(found["model"]["replies"][0].text)


if __name__ == "__main__":
    main()
