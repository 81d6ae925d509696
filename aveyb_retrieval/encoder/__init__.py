"""The Avey-B encoder: configuration, ranker, layers, model, tokenizer, and texts to vectors."""
