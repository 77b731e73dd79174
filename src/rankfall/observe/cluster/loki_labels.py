"""What the labels of a line in Loki tell of the container instance that wrote it: UID of its pod, number of the restart. Pure.

Collectors differ, and none of them must tell either. What is not told is unknown here, never taken from a time or a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rankfall.model import numbers
from rankfall.model.patterns import bounded

# The kubelet's own path of a container's log: namespace, pod, UID, container, restart.
_PATH: Final = bounded(r"/var/log/pods/[^/]+_([^/_]+)/[^/]+/([0-9]{1,9})\.log", limit=1_024)
_PATHS: Final = ("filename", "log_file_path")
_UIDS: Final = ("k8s_pod_uid", "pod_uid")
_RESTARTS: Final = ("k8s_container_restart_count",)
_OUTPUTS: Final = ("stream", "log_iostream")
# Of more restarts nobody tells.
_MAX_DIGITS: Final = 9
# Beside namespace, pod and container these tell one source from another.
TELLING: Final = (*_PATHS, *_UIDS, *_RESTARTS, *_OUTPUTS)


class Origin(NamedTuple):
    """Whose line it is, as far as its labels tell."""

    uid: str | None
    number: int | None


def origin(labels: Mapping[str, str]) -> Origin:
    """The instance that these labels name."""
    uid = next((labels[name] for name in _UIDS if labels.get(name)), None)
    said = (numbers.whole(labels.get(name), digits=_MAX_DIGITS) for name in _RESTARTS)
    number = next((each for each in said if each is not None and each >= 0), None)
    for name in _PATHS:
        found = _PATH.search(labels.get(name, ""))
        if found is not None:
            uid = found[1] if uid is None else uid
            number = numbers.matched(found[2]) if number is None else number
    return Origin(uid, number)
