"""The encoder: splits, ranker, layers, and how they run in training and inference."""
