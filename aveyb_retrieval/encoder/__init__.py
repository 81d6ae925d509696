"""The Avey-B encoder: configuration, ranker, layers, model, tokenizer, and texts to vectors.

`encoder.network` says where each equation of the paper is.
"""
