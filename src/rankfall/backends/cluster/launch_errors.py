"""Why an attempt could not be launched although the server would have let us: each names the object, whose it is, and the next step."""

from __future__ import annotations

from rankfall.model import InfrastructureError


class LaunchError(InfrastructureError):
    """An attempt could not be launched."""


class NameTaken(LaunchError):  # noqa: N818 - reads as the answer that it is
    """An object of this name is there: it runs, or it is not ours. It is left alone."""


class StillThere(LaunchError):  # noqa: N818 - reads as the answer that it is
    """What has to be gone first is not gone in time."""


class Vanished(LaunchError):  # noqa: N818 - reads as the answer that it is
    """Somebody else deleted the object while it was being launched."""
