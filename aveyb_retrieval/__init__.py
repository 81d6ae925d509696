"""Search long documents with Avey-B, an attention-free bidirectional encoder."""
