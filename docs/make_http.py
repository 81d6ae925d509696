"""The page of the site that lists what can be asked over HTTP, written from the OpenAPI document of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval.server.limits import Limits
from aveyb_retrieval.server.openapi import document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

HEAD = """\
# HTTP

Generated from what a server with default limits answers at `/openapi.json`. What each is for, and the limits:
[Server](server.md).
"""


def type_of(schema: Mapping[str, Any]) -> str:
    """Name the type of a value and its bounds."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(type_of(each) for each in schema[several]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    found = schema.get("type", "any")
    name = " or ".join(found) if isinstance(found, list) else str(found)
    if name == "array" and "items" in schema:
        name = f"list of {type_of(schema['items'])}"
    bounds = [f"{word} {schema[key]:,}" for key, word in _BOUNDS.items() if key in schema]
    return ", ".join([name, *bounds])


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "maxItems": "items at most",
    "maxLength": "characters at most",
}


def fields(operation: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Each field that an operation takes: its name, its schema, and whether it must be given."""
    for each in operation.get("parameters", ()):
        yield each["name"], each.get("schema") or each["content"]["application/json"]["schema"], each["required"]
    if "requestBody" not in operation:
        return
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    for one in body.get("anyOf", [body]):
        needed = one.get("required", ())
        for name, schema in one.get("properties", {}).items():
            yield name, schema, name in needed


def page() -> str:
    """The page, in Markdown."""
    parts = [HEAD]
    for path, methods in document(Limits())["paths"].items():
        for method, operation in methods.items():
            answer = next(iter(operation["responses"]["200"]["content"].values()))["schema"]
            lines = [f"## {method.upper()} {path}", "", f"{operation['summary']} Answers: {type_of(answer)}.", ""]
            rows = [
                f"| `{name}` | {type_of(schema)} | {'yes' if needed else ''} |".replace(" or ", " / ")
                for name, schema, needed in fields(operation)
            ]
            if rows:
                lines += ["| field | type | must be given |", "|---|---|---|", *dict.fromkeys(rows), ""]
            parts.append("\n".join(lines))
    return "\n".join(parts)


def write(path: Path) -> None:
    """Write the page, unless it is there already."""
    text = page()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
