"""Change an index: build, add, upsert, delete, compact, tune, verify and repair."""
