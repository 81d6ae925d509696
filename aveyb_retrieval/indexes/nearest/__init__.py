"""Find nearest vectors: FAISS, a GPU, or exactly."""
