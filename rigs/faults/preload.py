"""What the server of processes imports, once, before it is copied: modules only; nothing here may
start a thread.
"""

import warnings

# true of what runs; here nothing has run yet
warnings.filterwarnings("ignore", message="lance is not fork-safe")

import faiss  # noqa: E402, F401
import lance.query  # noqa: E402, F401
import msgspec  # noqa: E402, F401
import pyarrow.compute  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401

import aveyb_retrieval.indexes.changes.sync  # noqa: E402
import aveyb_retrieval.indexes.index  # noqa: E402, F401
import tests.indexes.conftest  # noqa: E402
import tests.indexes.fake  # noqa: E402, F401
