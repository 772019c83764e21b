"""Training baselines. Empty so far."""
