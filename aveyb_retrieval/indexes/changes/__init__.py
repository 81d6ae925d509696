"""Change an index: build, add, upsert, delete, compact, verify and repair."""
