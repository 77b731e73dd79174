"""The ``exec`` part of a user's entry: which plug-in, with which words and variables, and what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Final, cast, get_args

import msgspec

from rankfall.kube.access import ExecPlugin, Mode, Version
from rankfall.kube.entry_fields import Entry, Fields
from rankfall.kube.secret import Secret, excerpt

_EXEC: Final = frozenset(
    {"apiVersion", "command", "args", "env", "installHint", "provideClusterInfo", "interactiveMode"}
)
_VERSIONS: Final = get_args(Version)
_MODES: Final = get_args(Mode)
_CLUSTER_CONFIG: Final = "client.authentication.k8s.io/exec"


def plugin(entry: Entry, user: Fields, cluster: Entry) -> ExecPlugin:
    """The plug-in of a user.

    Args:
        entry: its fields.
        user: the user's; its name and file are shown in messages.
        cluster: the cluster's fields: one of its extensions is for the plug-in.

    Raises:
        KubeConfigError: a field is unknown, missing or wrong, or the protocol is one that is gone.
    """
    fields = Fields(entry, what=f"{user.what} (exec)", path=user.path, known=_EXEC)
    version, command = fields.text("apiVersion"), fields.text("command")
    if version not in _VERSIONS:
        fields.refuse(
            f"apiVersion {excerpt(version or '', limit=60)!r} is not supported",
            f"update the plug-in; it must speak {' or '.join(_VERSIONS)}",
        )
    if command is None:
        fields.refuse("it has no command", "add the program to run")
    mode = fields.text("interactiveMode")
    if mode is None and version == _VERSIONS[0]:
        fields.refuse("interactiveMode is missing, which v1 requires", f"set it to {' or '.join(_MODES)}")
    if mode is not None and mode not in _MODES:
        fields.refuse(f"interactiveMode {excerpt(mode, limit=60)!r} is unknown", f"set it to {' or '.join(_MODES)}")
    if "/" in command:
        command = str(Path(fields.path).parent.absolute() / command)
    tell = fields.flag("provideClusterInfo")
    return ExecPlugin(
        version=cast("Version", version),
        command=command,
        args=tuple(Secret(word) for word in fields.texts("args")),
        env=_environment(entry, fields),
        interactive=cast("Mode", mode or "IfAvailable"),
        install_hint=fields.text("installHint"),
        tell_cluster=tell,
        cluster_config=_cluster_config(cluster) if tell else None,
    )


def _environment(entry: Entry, fields: Fields) -> tuple[tuple[str, Secret], ...]:
    rows = entry.get("env") or []
    found: list[tuple[str, Secret]] = []
    for row in rows if isinstance(rows, list) else (None,):
        name, value = (row.get("name"), row.get("value", "")) if isinstance(row, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(value, str)) or not name or "=" in name or "\0" in name + value:
            fields.refuse("env must be a list of name and value", "put values in quotes")
        found.append((name, Secret(value)))
    return tuple(found)


def _cluster_config(cluster: Entry) -> Secret | None:
    """The one extension of a cluster that is meant for plug-ins."""
    for row in cluster.get("extensions") or ():
        if isinstance(row, dict) and row.get("name") == _CLUSTER_CONFIG:
            try:
                return Secret(msgspec.json.encode(row.get("extension")).decode())
            except RecursionError:
                return None  # YAML can refer to itself, JSON cannot
    return None
