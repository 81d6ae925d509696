"""What the fields of requests and answers mean, in a line each: the descriptions of `/openapi.json`."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any

from aveyb_retrieval.indexes.pages import UNITS
from aveyb_retrieval.indexes.search.hits import Hit, Passage
from aveyb_retrieval.indexes.search.options import SearchOptions

_IN_JSON = {"None": "null", "True": "true", "False": "false"}


def _attributes(described: type) -> dict[str, str]:
    """Return what the docstring of a class says of its attributes, by name."""
    _, _, listed = cleandoc(described.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    in_json = {name: re.sub("None|True|False", lambda word: _IN_JSON[word[0]], meaning) for name, meaning in found}
    return {name: " ".join(meaning.split()).removesuffix(".") for name, meaning in in_json.items()}


_IGNORED = "Makes no difference: "
_UNIT = {"page_unit": f"What that page is: {', '.join(UNITS)}"}
_INDEX = {"index": "Which of the texts given it is, counted from 0"}
_OF = {"index": "Name of the index; null where several are searched"}
_QUERY = {"query": "The query that this is the answer to"}
_SCORE = "Mean over the query's tokens of the best cosine with a token of the text"
_RERANK = {
    "model": _IGNORED + "there is one",
    "documents": "What is ordered: texts, or objects that have one",
    "text": "The text",
    "top_n": "How many of the best to give. Default all",
    "return_documents": "Repeat the texts in the answer. Default false",
}

# By the path of a request or the name of an answer; "" is for all that have no meaning of their own.
MEANINGS: dict[str, dict[str, str]] = {
    "": {
        "id": "Id of the document",
        "title": 'Title of the document, "" where there is none',
        "metadata": "All other fields of the document",
        "index": "Name of the index; needed where several are served",
        "version": "Version of the index",
        "documents": "How many documents the index has",
        "object": "What this is, in OpenAI's words",
        "model": "Name of the model",
        "query": "What the texts are compared with",
        "normalize": "Always true: vectors have unit length",
        "inputs": "A text, or a list of them",
        "dimensions": "Numbers of a vector: those of the model, others are refused",
        "prompt_name": '"document" (default) or "query": what the texts are encoded as',
        "truncate": _IGNORED + "texts are read whole",
        "truncation_direction": _IGNORED + "texts are read whole",
        "source_sentence": "The text that the others are compared with",
        "sentences": "The others",
        "parameters": "How they are encoded",
        "facets": "The values of each field that was asked for, most frequent first",
        "results": "What was found for each query",
        "words": "Words of the query that are looked up, without stop words, stemmed if the index is",
        "hits": "What was found, best first",
        "next": "The `offset` of the next page; null after the last",
    },
    # requests
    "/search": _attributes(SearchOptions)
    | {
        "query": "A question or words; by POST also a list of them, of which each gets a result",
        "indexes": "Names of indexes to search in one ranking, instead of `index`",
        "k": "How many hits. Default 10",
        "text": "Add the whole text of each document. Default false",
        "facets": "Fields of metadata whose 100 most frequent values are counted",
        "filter": 'Only documents that satisfy this, of metadata, `_id` or `title`: `{"year": {"$gte": 2020}}`',
        "rerank": '"maxsim" orders the candidates at last by late interaction; null (default) does not',
        "boost": 'Weights of fields that move the candidates after `rerank` and `min_score`: `{"year": 0.1}`',
    },
    "/documents": {
        "_id": "Id of the document; without it one is made of the content. Fields that are not listed are metadata",
        "text": "Text of the document",
    },
    "/documents/{id}": {
        "start": "First character. Default 0",
        "stop": "Character after the last. By default 1,048,576 are given",
        "metadata": "Fields with their new values",
        "remove": "Names of fields to remove",
    },
    "/v1/embeddings": {
        "input": "A text, or a list of them",
        "model": "NAME (default) encodes documents, NAME:query queries",
        "encoding_format": '"float" (default): a list of numbers; "base64": the bytes of float32, little-endian',
        "user": _IGNORED + "keys and addresses tell clients apart",
    },
    "/v1/models/{name}": {"name": "NAME or NAME:query"},
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/": {"inputs": "A text or a list of them to encode, or a text and others to compare it with"},
    "/similarity": {"inputs": "A text, and others to compare it with"},
    "/rerank": {
        "texts": "What is ordered",
        "raw_scores": _IGNORED + "scores are cosines either way",
        "return_text": "Repeat the texts in the answer. Default false",
    },
    "/tokenize": {"add_special_tokens": "Put those around each text that the model puts there. Default true"},
    # answers
    "Hit": _attributes(Hit) | _UNIT,
    "Passage": _attributes(Passage) | _UNIT,
    "Found": _OF | _QUERY,
    "FoundForEach": _OF,
    "Result": _QUERY,
    "Value": {"value": "The value", "count": "How many documents that satisfy `filter` and `ids` have it"},
    "Document": {
        "index": "Name of the index",
        "text": "Its text, or the characters that were asked for",
        "span": "Which characters these are: `[start, stop)`",
        "length": "Characters of the whole text",
        "original": "Whether the file that it was read from may be asked for",
    },
    "Changed": {
        "index": "Name of the index",
        "added": "How many documents are new",
        "replaced": "How many were replaced or changed",
        "unchanged": "How many were as given before, so nothing was encoded",
        "deleted": "How many were removed",
    },
    "Indexes": {
        "indexes": "The indexes that are served",
        "name": "Name of the index",
        "model": "Name of the model; null where no index has one",
        "max_k": "The most that `offset` and `k` may be together",
    },
    "Embeddings": _INDEX
    | {
        "data": "The vectors, in the order of the texts",
        "embedding": "The vector, of unit length, as `encoding_format` asks",
        "usage": "How much was read",
        "prompt_tokens": "Tokens of all texts",
        "total_tokens": "The same",
    },
    "Models": {"data": "The names"},
    "Model": {
        "id": "NAME for documents, NAME:query for queries",
        "created": "When the server was started, in seconds since 1970",
        "owned_by": "Always aveyb-retrieval",
    },
    "Reranked": _INDEX
    | {
        "id": "Another for each answer",
        "results": "The texts, best first",
        "relevance_score": _SCORE,
        "document": "The text, if `return_documents` asks for it",
        "text": "The text",
    },
    "Rank": _INDEX | {"score": _SCORE, "text": "The text, if `return_text` asks for it"},
    "Token": {
        "id": "Number of the token in the vocabulary",
        "text": "Its characters in the text",
        "special": "Whether the model adds it to a text",
        "start": "First of these characters",
        "stop": "Character after the last",
    },
    "Info": {
        "model_id": "Name of the model",
        "model_sha": "Fingerprint of the model, which tells models apart",
        "model_dtype": "What it computes in",
        "model_type": "How it makes a vector of a text",
        "max_concurrent_requests": "How many requests run and wait at most",
        "max_input_length": "Tokens that a text has at most",
        "max_batch_tokens": "Tokens that the texts of a request have at most together",
        "max_client_batch_size": "Texts that a request has at most",
        "auto_truncate": "Whether longer texts are cut: never, they are refused",
        "version": "Version of aveyb-retrieval",
    },
    "Health": {"status": "Always ok: what cannot answer does not answer"},
    "Error": {
        "error": "What is wrong, and what to do",
        "error_type": "The kind of error, in the words of text-embeddings-inference",
    },
    "OpenAIError": {
        "error": "What is wrong",
        "message": "What is wrong, and what to do",
        "type": "The kind of error, in OpenAI's words",
        "param": "Always null",
        "code": "A name for this error, if it has one",
    },
}


def meaning(name: str, of: str) -> str:
    """Return what a field of a request or answer means, "" where nothing is said of it."""
    return MEANINGS.get(of, {}).get(name) or MEANINGS[""].get(name, "")


def explain(schema: Any, of: str) -> Any:
    """Return a schema of a request or answer in which each field has its meaning."""
    if isinstance(schema, list):
        return [explain(each, of) for each in schema]
    if not isinstance(schema, dict):
        return schema
    explained = {key: explain(value, of) for key, value in schema.items()}
    for name, field in explained.get("properties", {}).items():
        field["description"] = meaning(name, of)
    return explained
