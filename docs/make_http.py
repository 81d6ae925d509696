"""The page of the site that lists what can be asked over HTTP, written from the OpenAPI document of
a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.server.http import Limits
from aveyb_retrieval.server.openapi import document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

HEAD = """\
# HTTP

Generated from what a server with default limits answers at `/openapi.json`. What each is for, and the limits:
[Server](server.md). In a URL, values other than texts are JSON.
"""  # noqa: E501


def type_of(schema: Mapping[str, Any]) -> str:
    """Name the type of a value and its bounds."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(type_of(each) for each in schema[several]))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    found = schema.get("type", "any")
    name = " or ".join(found) if isinstance(found, list) else str(found)
    if "items" in schema:
        name = name.replace("array", f"list of {type_of(schema['items'])}")
    if isinstance(schema.get("additionalProperties"), dict):
        name = f"object of {type_of(schema['additionalProperties'])}"
    bounds = [f"{word} {schema[key]:,}" for key, word in _BOUNDS.items() if key in schema]
    return ", ".join([name, *bounds])


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "maxItems": "items at most",
    "maxLength": "characters at most",
}


Row = tuple[str, Mapping[str, Any], bool]


def fields(schema: Mapping[str, Any], before: str = "") -> Iterator[Row]:
    """Each field of an object, and of objects in it: its name, its schema, and whether it must be
    there.
    """
    for one in schema.get("anyOf", [schema]):
        for name, field in one.get("properties", {}).items():
            yield before + name, field, name in one.get("required", ())
            yield from fields(field, f"{before}{name}.")
        if "items" in one:
            yield from fields(one["items"], f"{before.removesuffix('.')}[]." if before else "")


def asked(operation: Mapping[str, Any]) -> Iterator[Row]:
    """Each field that an operation takes, as `fields` gives it."""
    for each in operation.get("parameters", ()):
        shown = each if "schema" in each else each["content"]["application/json"]
        yield (
            each["name"],
            {**shown["schema"], "description": each["description"]},
            each["required"],
        )
    if "requestBody" in operation:
        yield from fields(operation["requestBody"]["content"]["application/json"]["schema"])


def table(rows: Iterable[Row], *, needed: bool) -> list[str]:
    """A table of fields, each row once, with a column that says which must be given."""
    head = ["field", "type", *(["must be given"] if needed else []), "meaning"]
    lines = [
        [
            f"`{name}`",
            type_of(schema),
            *(["yes" if must else ""] if needed else []),
            schema["description"],
        ]
        for name, schema, must in rows
    ]
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    return (
        [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *dict.fromkeys(shown), ""]
        if shown
        else []
    )


def page() -> str:
    """The page, in Markdown."""
    described = document(Limits())
    several: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            answer = type_of(
                next(iter(operation["responses"]["200"]["content"].values()))["schema"]
            )
            several.setdefault((operation["summary"], answer), []).append(
                (f"{method.upper()} {path}", operation)
            )
    lines = [HEAD]
    # those that do the same; the last takes most
    for (summary, answer), operations in several.items():
        lines += [
            f"## {', '.join(name for name, _ in operations)}",
            "",
            f"{summary} Answers: {answer}.",
            "",
        ]
        lines += table(asked(operations[-1][1]), needed=True)
    lines += ["## Answers", ""]
    for name, schema in described["components"]["schemas"].items():
        lines += [f"### {name}", "", *table(fields(schema), needed=False)]
    return "\n".join(lines)


def write(path: Path) -> None:
    """Write the page, unless it is there already."""
    text = page()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
