"""Everything on disk: the index directory, its lock, manifest and Lance datasets."""
