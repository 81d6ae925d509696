"""Everything on disk: the index directory, its lock, manifest, SQLite store and vector shards."""
