"""Helpers of tests, imported as `helpers.NAME` (`pythonpath` in pyproject.toml)."""
