"""The page of the site that lists what can be asked over HTTP, written from the OpenAPI document of
a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.server.limits import ServerLimits
from aveyb_retrieval.server.openapi import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

HEAD = """\
# HTTP

Generated from what a server with default limits answers at `/openapi.json`. What each is for, and the limits:
[Server](server.md). In a URL, values other than texts are JSON.
"""  # noqa: E501


DOCUMENT = describe(ServerLimits())


def type_of(schema: Mapping[str, Any]) -> str:
    """Name the type of a value and its bounds."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(type_of(kind) for kind in schema[several]))
    if "prefixItems" in schema:
        return f"[{', '.join(type_of(item) for item in schema['prefixItems'])}]"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    name = str(schema.get("type", "any"))
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


def fields(schema: Mapping[str, Any]) -> Iterator[Row]:
    """Each field of an object: its name, its schema, and whether it must be there."""
    for name, field in schema["properties"].items():
        yield name, field, name in schema.get("required", ())


def body_type(operation: Mapping[str, Any]) -> str | None:
    """The name of the type of an operation's body, or of an element of it; None if it has none."""
    if "requestBody" not in operation:
        return None
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return type_of(schema).partition(" or ")[0]


def asked(operation: Mapping[str, Any]) -> Iterator[Row]:
    """Each field that an operation takes, as `fields` gives it."""
    for parameter in operation.get("parameters", ()):
        described = parameter if "schema" in parameter else parameter["content"]["application/json"]
        schema = {**described["schema"], "description": parameter["description"]}
        yield parameter["name"], schema, parameter["required"]
    if name := body_type(operation):
        yield from fields(DOCUMENT["components"]["schemas"][name])


def table(rows: Iterable[Row], *, asked: bool) -> list[str]:
    """A table of fields, each row once; of those that are asked for, with their defaults."""
    head = ["field", "type", *(["default"] if asked else []), "meaning"]
    lines = dict.fromkeys(
        " | ".join(
            [
                f"`{name}`",
                type_of(schema),
                *([default_of(schema, must=must)] if asked else []),
                schema["description"],
            ]
        )
        for name, schema, must in rows
    )
    if not lines:
        return []
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {x} |" for x in lines), ""]


def default_of(schema: Mapping[str, Any], *, must: bool) -> str:
    """The default of a field, or that it must be given."""
    if must:
        return "must be given"
    default = schema.get("default")
    return "" if default in (None, "") else f"`{json.dumps(default)}`"


def page() -> str:
    """The page, in Markdown."""
    bodies: set[str | None] = set()
    several: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            bodies.add(body_type(operation))
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
        lines += table(asked(operations[-1][1]), asked=True)
    lines += ["## Types", ""]
    for name, schema in DOCUMENT["components"]["schemas"].items():
        if name not in bodies:
            lines += [f"### {name}", "", schema["description"], ""]
            lines += table(fields(schema), asked=False)
    return "\n".join(lines)


def write(path: Path) -> None:
    """Write the page, unless it is there already."""
    text = page()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
