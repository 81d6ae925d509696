"""Packages that come with an extra: importing what needs them says which extra is missing, in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import OptionalDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "sentence_transformers": "torch",
    "tokenizers": "torch",
    "huggingface_hub": "hub",
    "onnx": "train",
    "prometheus_client": "server",
    "starlette": "server",
    "uvicorn": "server",
    "langchain_core": "langchain",
    "llama_index": "llama-index",
    "haystack": "haystack",
    "mcp": "mcp",
}


@contextmanager
def extra_for(purpose: str) -> Iterator[None]:
    """Raise `OptionalDependencyError` where an import inside the block lacks a package that an extra brings.

    Args:
        purpose: what the package is needed for, for the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise OptionalDependencyError(package.replace("_", "-"), _EXTRAS[package], purpose) from error
