"""Models that give the vectors of documents and queries, and how they are loaded."""
