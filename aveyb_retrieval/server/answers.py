"""Answers as bytes of JSON, made in the threads that work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterable


def to_json(content: Any) -> bytes:
    """Write JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def joined(parts: Iterable[bytes]) -> bytes:
    """Write a list of what is JSON already."""
    return b"[" + b",".join(parts) + b"]"


def json_answer(content: bytes) -> Response:
    """Answer with what is JSON already."""
    return Response(content, media_type="application/json")
