"""Indexes and their model over HTTP: search, the shapes of OpenAI's and TEI's embedding servers, and a page."""
