"""Text to token ids and passages: tokenizers, outlines, passages."""
