"""What a launch says about an object that has its name: which it may remove, and why it leaves the others alone."""

from __future__ import annotations

from rankfall.backends.cluster.launch_errors import NameTaken
from rankfall.backends.cluster.names import LABEL_RUN
from rankfall.backends.cluster.ownership import Object, Standing, described, finished, label, suspended
from rankfall.kube.secret import excerpt


def check_may_go(found: Object, state: Standing, *, shown: str, replace: bool, removed: bool) -> None:
    """Whether an object may be removed for a new one.

    Args:
        found: the object.
        state: what it is to the launch.
        shown: how messages name it.
        replace: the user wants one that is alive to go.
        removed: one was removed for this launch already.

    Raises:
        NameTaken: it may not: it is not ours, it is alive, or somebody made it just now.
    """
    whose = described(found)
    if state == "foreign":
        raise NameTaken(
            f"cannot launch {shown}: an object of this name is there and not of this run ({whose})",
            hint="it was left alone; give the job another name",
        )
    if state == "alive" and not replace:
        raise NameTaken(
            f"cannot launch {shown}: one of this name {'is held back' if suspended(found) else 'runs'} already ({whose})",
            hint=f"rankfall attach {excerpt(label(found, LABEL_RUN))} follows it; --replace ends it and starts anew",
        )
    if removed:
        raise NameTaken(
            f"cannot launch {shown}: somebody else made one of this name meanwhile ({whose})",
            hint="two clients launch the same run: stop one of them",
        )


def going(found: Object) -> str:
    """Why an object goes, and whose it is."""
    condition = finished(found)
    return f"which {f'has ended ({condition})' if condition else 'is to be replaced'} ({described(found)})"
