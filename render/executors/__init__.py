"""Executors: they run render jobs in processes of this machine, or on a Ray cluster."""
