"""Measure retrieval: data sets, systems, metrics, significance, reports."""
