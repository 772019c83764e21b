"""Forms that a dataset can have on disk: readers, writers, conversion and verification."""
