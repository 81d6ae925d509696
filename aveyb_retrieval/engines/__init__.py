"""Indexes in database servers: PostgreSQL and Milvus."""
