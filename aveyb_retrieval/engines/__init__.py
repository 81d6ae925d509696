"""Indexes in database servers: PostgreSQL."""
