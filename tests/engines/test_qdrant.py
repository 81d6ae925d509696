"""The example engine passes the suite for engines of other packages."""

from __future__ import annotations

import pytest

from aveyb_retrieval.indexes.engine import register_engine
from tests.engines import stands  # noqa: F401
from tests.engines.conformance import EngineConformance

pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
pytestmark = pytest.mark.engine


class TestQdrant(EngineConformance):
    """Qdrant in memory."""

    lacks = frozenset({"our-statistics"})

    def address(self, name: str) -> str:
        """Registers the example, too."""
        import qdrant_engine

        register_engine("qdrant", qdrant_engine.QdrantCollection)
        return f"qdrant://memory/{name}"
