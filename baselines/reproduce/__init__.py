"""Tables and figures of the papers: which runs they need, and the comparison."""
