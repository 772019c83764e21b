"""Submitted encoders and embeddings: their kind, their manifest, and checks of their files."""
