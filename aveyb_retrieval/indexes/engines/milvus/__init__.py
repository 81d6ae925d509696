"""Milvus, from 2.5 on, as an engine."""
