"""Experiments: TOML files, one a row of the papers' tables."""
