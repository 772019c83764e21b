"""Training of an experiment: loop, checkpoints, log, run folder."""
