"""Scoring encoders. Empty so far."""
