"""Search long documents with Avey-B, an attention-free bidirectional encoder."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from aveyb_retrieval import errors
from aveyb_retrieval._registration import register_when_imported

_ERRORS = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, Exception)
]
_HOME = {
    name: home
    for home, names in {
        "documents.readers.originals": "Box",
        "documents.records": "FileOrigin Notice",
        "encoder.embedders.embedder": "Embedder EncodedDocument",
        "encoder.model_folders": "model_path",
        "encoder.text.passages": "PassageSize",
        "engines.publish": "PublishReport publish_index unpublish_documents",
        "indexes.changes.change": "Report",
        "indexes.changes.copy": "CopyReport copy_index",
        "indexes.changes.sync": "SyncPlan plan_sync sync_index",
        "indexes.changes.update": ("Batch build_index"),
        "indexes.changes.verify": "Verdict verify_index",
        "indexes.cluster": "build_on_ray",
        "indexes.index": "Index",
        "indexes.search.exported_vectors": "VectorBatch",
        "indexes.search.hit": "Hit Passage Result",
        "indexes.search.quotes": "QuoteCheck",
        "indexes.search.prompts": "hits_to_prompt source_to_prompt",
        "indexes.search.step_times": "SearchEvent",
        "indexes.search.stored_documents": "Contents Document Excerpt Match Section",
        "indexes.search.retriever": "Retriever",
    }.items()
    for name in names.split()
}
_OF_TORCH = {
    "AveyBConfig": "encoder.config",
    "AveyBForMaskedLM": "encoder.network.model",
    "AveyBForSequenceClassification": "encoder.network.heads",
    "AveyBForTokenClassification": "encoder.network.heads",
    "AveyBModel": "encoder.network.model",
    "AveyBForQuestionAnswering": "family.answers",
    "AveyConfig": "family.config",
    "AveyForCausalLM": "family.avey",
    "FunnelAveyBConfig": "family.config",
    "FunnelAveyBModel": "family.funnel",
    "ReferenceAveyB": "family.reference",
}


# `import *` takes what loads no torch; the classes of `_OF_TORCH` are imported by name
__all__ = ["__version__", *_ERRORS, *_HOME]

register_when_imported()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562), so that `import aveyb_retrieval` loads
    nothing heavy.
    """
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
