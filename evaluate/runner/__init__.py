"""A stranger's encoder in a process of its own."""
