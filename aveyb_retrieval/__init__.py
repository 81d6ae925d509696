"""Search long documents with Avey-B, an attention-free bidirectional encoder."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aveyb_retrieval._registration import register_when_imported
from aveyb_retrieval.errors import (
    AveyBError,
    BackendError,
    ConfigError,
    EngineError,
    IndexFormatError,
    IndexLockedError,
    InputError,
    ModelError,
    OptionalDependencyError,
    extra_for,
)

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.avey.model import AveyForCausalLM
    from aveyb_retrieval.encoder.config import AveyBConfig, AveyConfig
    from aveyb_retrieval.encoder.embedders.embedder import Embedder
    from aveyb_retrieval.encoder.network.heads import (
        AveyBForQuestionAnswering,
        AveyBForSequenceClassification,
        AveyBForTokenClassification,
    )
    from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
    from aveyb_retrieval.indexes.changes.build import build_index
    from aveyb_retrieval.indexes.changes.change import compact_index, tune_index
    from aveyb_retrieval.indexes.changes.sync import sync_index
    from aveyb_retrieval.indexes.changes.update import (
        add_documents,
        delete_documents,
        update_metadata,
        upsert_documents,
    )
    from aveyb_retrieval.indexes.changes.verify import verify_index
    from aveyb_retrieval.indexes.cluster import build_on_ray
    from aveyb_retrieval.indexes.index import Index
    from aveyb_retrieval.indexes.search.hits import Hit, Passage, hits_to_prompt
    from aveyb_retrieval.indexes.search.lookup import Document
    from aveyb_retrieval.indexes.search.publish import publish_index, unpublish_documents
    from aveyb_retrieval.indexes.search.result import Result
    from aveyb_retrieval.indexes.search.retriever import Retriever

    __version__: str

__all__ = [
    "AveyBConfig",
    "AveyBError",
    "AveyBForMaskedLM",
    "AveyBForQuestionAnswering",
    "AveyBForSequenceClassification",
    "AveyBForTokenClassification",
    "AveyBModel",
    "AveyConfig",
    "AveyForCausalLM",
    "BackendError",
    "ConfigError",
    "Document",
    "Embedder",
    "EngineError",
    "Hit",
    "Index",
    "IndexFormatError",
    "IndexLockedError",
    "InputError",
    "ModelError",
    "OptionalDependencyError",
    "Passage",
    "Result",
    "Retriever",
    "__version__",
    "add_documents",
    "build_index",
    "build_on_ray",
    "compact_index",
    "delete_documents",
    "hits_to_prompt",
    "publish_index",
    "sync_index",
    "tune_index",
    "unpublish_documents",
    "update_metadata",
    "upsert_documents",
    "verify_index",
]

_HOME = {
    "AveyBConfig": "encoder.config",
    "AveyBForMaskedLM": "encoder.network.model",
    "AveyBForQuestionAnswering": "encoder.network.heads",
    "AveyBForSequenceClassification": "encoder.network.heads",
    "AveyBForTokenClassification": "encoder.network.heads",
    "AveyBModel": "encoder.network.model",
    "AveyConfig": "encoder.config",
    "AveyForCausalLM": "encoder.avey.model",
    "Document": "indexes.search.lookup",
    "Embedder": "encoder.embedders.embedder",
    "Hit": "indexes.search.hits",
    "Index": "indexes.index",
    "hits_to_prompt": "indexes.search.hits",
    "Passage": "indexes.search.hits",
    "Result": "indexes.search.result",
    "Retriever": "indexes.search.retriever",
    "add_documents": "indexes.changes.update",
    "build_index": "indexes.changes.build",
    "build_on_ray": "indexes.cluster",
    "compact_index": "indexes.changes.change",
    "delete_documents": "indexes.changes.update",
    "publish_index": "indexes.search.publish",
    "sync_index": "indexes.changes.sync",
    "tune_index": "indexes.changes.change",
    "unpublish_documents": "indexes.search.publish",
    "update_metadata": "indexes.changes.update",
    "upsert_documents": "indexes.changes.update",
    "verify_index": "indexes.changes.verify",
}


register_when_imported()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562), so that `import aveyb_retrieval` loads nothing heavy."""
    if name == "__version__":
        from aveyb_retrieval.version import package_version

        return package_version()
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra_for(name):
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, "__version__"])
