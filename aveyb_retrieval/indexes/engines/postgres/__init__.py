"""PostgreSQL with pgvector as an engine."""
