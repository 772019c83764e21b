"""Reproducing a table or figure of a paper: its runs, and the comparison with what was printed."""
