"""Encoded documents on their way between machines: shards of Parquet files, written by many, read by `build_index`."""
