"""Search long documents with Avey-B, an attention-free bidirectional encoder."""

from aveyb_retrieval._registration import register_when_imported

register_when_imported()
