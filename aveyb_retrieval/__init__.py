"""Search long documents with Avey-B, an attention-free bidirectional encoder."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from aveyb_retrieval import errors
from aveyb_retrieval._registration import register_when_imported

_ERRORS = [
    "AveyBError",
    "BackendError",
    "ConfigError",
    "EngineError",
    "IndexFormatError",
    "IndexLockedError",
    "InputError",
    "ModelError",
    "OptionalDependencyError",
]
_HOME = {
    "Batch": "indexes.changes.update",
    "Box": "documents.readers.originals",
    "CopyReport": "indexes.changes.copy",
    "Document": "indexes.search.reading",
    "Embedder": "encoder.embedders.embedder",
    "EncodedDocument": "encoder.embedders.embedder",
    "Contents": "indexes.search.reading",
    "Excerpt": "indexes.search.reading",
    "FileOrigin": "documents.records",
    "Hit": "indexes.search.hits",
    "Index": "indexes.index",
    "Match": "indexes.search.reading",
    "Notice": "documents.records",
    "Passage": "indexes.search.hits",
    "PassageSize": "encoder.text.passages",
    "PublishReport": "engines.publish",
    "QuoteCheck": "indexes.search.quotes",
    "Report": "indexes.changes.change",
    "Result": "indexes.search.hits",
    "Retriever": "indexes.search.retriever",
    "Section": "indexes.search.reading",
    "SyncPlan": "indexes.changes.sync",
    "Verdict": "indexes.changes.verify",
    "add_documents": "indexes.changes.update",
    "build_index": "indexes.changes.update",
    "build_on_ray": "indexes.cluster",
    "compact_index": "indexes.changes.change",
    "copy_index": "indexes.changes.copy",
    "delete_documents": "indexes.changes.update",
    "hits_to_prompt": "indexes.search.reading",
    "plan_sync": "indexes.changes.sync",
    "publish_index": "engines.publish",
    "sync_index": "indexes.changes.sync",
    "unpublish_documents": "engines.publish",
    "update_metadata": "indexes.changes.update",
    "upsert_documents": "indexes.changes.update",
    "verify_index": "indexes.changes.verify",
}
_OF_TORCH = {
    "AveyBConfig": "encoder.config",
    "AveyBForMaskedLM": "encoder.network.model",
    "AveyBForSequenceClassification": "encoder.network.heads",
    "AveyBForTokenClassification": "encoder.network.heads",
    "AveyBModel": "encoder.network.model",
}


def _has(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


__all__ = ["__version__", *_ERRORS, *_HOME]
if _has("torch") and _has("transformers"):  # `import *` takes what can be had; by name, the others say what they need
    __all__ += _OF_TORCH

register_when_imported()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562), so that `import aveyb_retrieval` loads nothing heavy."""
    if name == "__version__":
        from aveyb_retrieval.system import package_version

        return package_version()
    if name in _ERRORS:
        return getattr(errors, name)
    home = _HOME.get(name) or _OF_TORCH.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with errors.extra_for(name):
        return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_ERRORS, *_HOME, *_OF_TORCH, "__version__"])
