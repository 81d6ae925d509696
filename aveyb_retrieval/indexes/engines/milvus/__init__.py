"""Milvus, a server or the embedded milvus-lite, as an engine."""
