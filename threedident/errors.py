"""The errors a user can meet. The command line prints them in one line and exits with 2."""

from __future__ import annotations


class ThreeDIdentError(Exception):
    """Any error of this toolkit: says what was expected, what was found and what to do."""

    exit_code = 2


class UsageError(ThreeDIdentError, ValueError):
    """An argument, an option or a file given by the user does not fit."""


class DatasetError(ThreeDIdentError):
    """A dataset on disk is missing, corrupt, foreign or made with other settings."""


class ThreeDIdentWarning(UserWarning):
    """Any warning of this toolkit; the command line prints it in one line."""


class MatchingWarning(ThreeDIdentWarning):
    """Pairs matched among single images are spread otherwise than their conditional asks for."""


class RenderWarning(ThreeDIdentWarning):
    """A dataset is rendered as asked for, but its images may not be as expected."""


class ManifestWarning(ThreeDIdentWarning):
    """A manifest lies beside a submission, but is not used."""


class RenderError(ThreeDIdentError):
    """Images that could not be rendered."""

    exit_code = 1


class TrainingError(ThreeDIdentError):
    """A training that cannot go on: its loss is not finite, or its device is gone."""

    exit_code = 1


class MissingExtraError(ThreeDIdentError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed: pip install '.[{extra}]' in the "
            "checkout of this toolkit"
        )
        self._parts = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        """Crosses process borders: exceptions are otherwise rebuilt from their message."""
        return MissingExtraError, self._parts
