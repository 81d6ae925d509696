"""Train vocabularies, encoders and sentence models."""
