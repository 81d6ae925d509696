"""What the fields of requests and answers mean, in a line each: the descriptions of `/openapi.json`.

`meanings.json` has them by the path of a request or the name of an answer; "" is for all that have no meaning of their
own. What Python has, too, is told by the docstrings of its classes.
"""

from __future__ import annotations

import json
import re
from inspect import cleandoc
from pathlib import Path
from typing import Any

from aveyb_retrieval.indexes.pages import UNITS
from aveyb_retrieval.indexes.search.hits import Hit, Passage
from aveyb_retrieval.indexes.search.options import SearchOptions

_IN_JSON = {"None": "null", "True": "true", "False": "false"}
_TOLD: dict[str, dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def _attributes(described: type) -> dict[str, str]:
    """Return what the docstring of a class says of its attributes, by name."""
    _, _, listed = cleandoc(described.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    in_json = {name: re.sub("None|True|False", lambda word: _IN_JSON[word[0]], meaning) for name, meaning in found}
    return {name: " ".join(meaning.split()).removesuffix(".") for name, meaning in in_json.items()}


_UNIT = {"page_unit": f"What that page is: {', '.join(UNITS)}"}
MEANINGS = _TOLD | {
    "/search": _attributes(SearchOptions) | _TOLD["/search"],
    "/v2/rerank": _TOLD["/v1/rerank"],
    "Hit": _attributes(Hit) | _UNIT,
    "Passage": _attributes(Passage) | _UNIT,
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
