"""What is attacked. A try makes one damaged input from a random generator and uses it as a user would.

It may end well, or with an error of ours. Anything else is a finding: another exception, a crash, a hang, a false
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz import indexes, inputs, models

Attack = Callable[[Random, Path], None]

KINDS: dict[str, Attack] = {
    "corpus": inputs.corpus,
    "query": indexes.query,
    "filter": indexes.filter_,
    "manifest": indexes.manifest,
    "store": indexes.store,
    "shard": indexes.shard,
    "vectors": inputs.vectors,
    "faiss": indexes.faiss_file,
    "faiss-open": indexes.faiss_open,
    "tokenizer": models.tokenizer,
    "model": models.model,
    "qrels": inputs.qrels,
    "run": inputs.run,
    "report": inputs.report,
    "page": inputs.page,
}
