"""Adapters for other frameworks; each module needs the extra of its name, and nothing here is
imported by others.
"""
