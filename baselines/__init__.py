"""Training the papers' baselines: losses, encoders, experiments, and tables of the results."""
