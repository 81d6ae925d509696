"""Retrieval-augmented generation with LangChain, without a network: `pip install
'aveyb-retrieval[langchain]'`.

    python examples/rag_langchain.py

The language model is LangChain's fake one, which repeats a given answer: put your own in its place.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from aveyb_retrieval import build_index, source_to_prompt
from aveyb_retrieval.integrations.langchain import AveyBRetriever

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
TEMPLATE = """Answer from these passages only.

{passages}

Question: {question}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        build_index(DOCUMENTS, index)
        retriever = AveyBRetriever(path=str(index), k=2)
        prompt = ChatPromptTemplate.from_template(TEMPLATE)
        passages = retriever | RunnableLambda(
            lambda found: "\n\n".join(
                source_to_prompt(number, each.page_content, title=each.metadata["title"])
                for number, each in enumerate(found, start=1)
            )
        )
        inputs = {"passages": passages, "question": RunnablePassthrough()}
        model = FakeListChatModel(responses=["Three months, says the lease."])
        asked = inputs | prompt
        print(asked.invoke(QUESTION).to_string())
        print("Answer:", (asked | model | StrOutputParser()).invoke(QUESTION))


if __name__ == "__main__":
    main()
