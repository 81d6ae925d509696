"""Avey, the causal model of the family."""
