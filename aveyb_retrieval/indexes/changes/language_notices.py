"""What a build reports of the languages of its documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval.documents.records import Notice
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.indexes.encoding import AUTO
from aveyb_retrieval.indexes.store.languages import MAIN, NAMES
from aveyb_retrieval.system import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aveyb_retrieval.indexes.changes.transaction import Transaction

_REPORTED = 0.05  # the share of documents or passages from which on there is a notice
_UNKNOWN_WEIGHT = 0.5  # passages whose vectors weigh less are not known to the model


def language_notices(transaction: Transaction) -> list[Notice]:
    """Return what is to be reported of a build; nothing of one in English."""
    tables, encoding = transaction.tables, transaction.state.encoding
    passages = max(transaction.state.counts.passages, 1)
    _, weights = tables.light("passage" if "passage" in encoding.kinds else "document")
    unknown = float((weights < _UNKNOWN_WEIGHT).sum()) / passages
    described = describe_languages(tables.languages())
    name = None if encoding.model is None else str(encoding.model["name"])
    if not described and unknown < _REPORTED:
        return []
    parts = []
    if described:
        parts.append(f"languages: {described}")
    elif encoding.language != AUTO:
        parts.append("languages: one for all, as --language says")
    if name is not None and unknown >= _REPORTED:
        parts.append(
            f"the vectors of {name} do not know {unknown:.0%} of the passages, which are found by"
            " their words"
        )
    if name == DEFAULT_MODEL.name:
        parts.append(
            f"{name} is a model of English; one of a hundred languages (91 MB):"
            f" {install_command('languages')}, then --model languages"
        )
    if described:
        parts.append("words follow each document's language; --language sets one for all")
    return [Notice(str(transaction.root), "; ".join(parts), left_out=False)]


def describe_languages(counts: Mapping[str, int]) -> str:
    """Name the languages with their shares of the documents; "" where there is hardly another one
    than English.
    """
    total = max(sum(counts.values()), 1)
    shares = {code: count / total for code, count in counts.items() if count / total >= _REPORTED}
    if not shares.keys() - {MAIN}:
        return ""
    return ", ".join(f"{NAMES.get(code, code)} {share:.0%}" for code, share in shares.items())
