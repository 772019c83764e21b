"""Errors and warnings of this toolkit.

The command line prints an error in one line and exits with its `exit_code`.
"""

from __future__ import annotations


class ThreeDIdentError(Exception):
    """Any error of this toolkit; its text says what was expected and found, and what to do."""

    exit_code = 2


class UsageError(ThreeDIdentError, ValueError):
    """An argument, an option or a file of the user that does not fit."""


class DatasetError(ThreeDIdentError):
    """A dataset on disk that is missing, corrupt, foreign or made with other settings."""


class ThreeDIdentWarning(UserWarning):
    """Any warning of this toolkit; the command line prints it in one line."""


class MatchingWarning(ThreeDIdentWarning):
    """Pairs matched among single images that are spread otherwise than their conditional."""


class RenderWarning(ThreeDIdentWarning):
    """A dataset is rendered as asked for, but its images may not be as expected."""


class PrecisionWarning(ThreeDIdentWarning):
    """A precision that this machine computes in, but slowly."""


class ManifestWarning(ThreeDIdentWarning):
    """A manifest that lies beside a submission, but is not used."""


class RenderError(ThreeDIdentError):
    """Images that could not be rendered."""

    exit_code = 1


class TrainingError(ThreeDIdentError):
    """A training that cannot go on: its loss is not finite, or its device is gone."""

    exit_code = 1


class MissingExtraError(ThreeDIdentError, ImportError):
    """An optional dependency that is not installed.

    Args:
        package: the name of the dependency.
        extra: the extra of this toolkit that brings it.
        purpose: the work for which it is needed; the beginning of the text.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed: pip install '.[{extra}]' in the "
            "checkout of this toolkit"
        )
        self._parts = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        """Rebuild it from its parts in another process, not from its message."""
        return MissingExtraError, self._parts
