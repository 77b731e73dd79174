"""``kubernetes.log_store``: where pods store the lines of ranks past the API server, and how its text is read.

Refused is a store that a pod cannot write with Python's standard library alone, and a path that no volume of the pods holds: it would end with
the container.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.model.errors import SpecError

if TYPE_CHECKING:
    from rankfall.model.kubernetes_spec import Kubernetes

FIELD: Final = "$.kubernetes.log_store"
_MAX: Final = 1024
_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=+-]+)*/?")
_KINDS: Final[dict[str, Literal["file", "volume"]]] = {"file://": "file", "volume:": "volume"}


class LogStorePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A store.

    Attributes:
        kind: ``file``: this machine sees it by the same path; ``volume``: it may see it by another one, or not at all; ``s3``: both reach it with
            the keys of their own environment.
        path: in the pods, absolute; of ``s3`` the whole ``s3://BUCKET/PREFIX``.
    """

    kind: Literal["file", "volume", "s3"]
    path: str


def log_store_place(text: str) -> LogStorePlace:
    """What the text of the field says.

    Raises:
        SpecError: it is of another form.
    """
    for head, kind in _KINDS.items():
        path = text.removeprefix(head)
        if path != text:
            parts = path.split("/")[1:]
            if not path.startswith("/") or not all(parts) or {".", ".."} & set(parts) or not path.isprintable():
                raise SpecError(FIELD, f"{path!r} is no absolute path below /", hint="as: volume:/workspace/logs")
            return LogStorePlace(kind=kind, path=path)
    if len(text) <= _MAX and _S3.fullmatch(text) and "/../" not in f"{text}/":
        return LogStorePlace(kind="s3", path=text)
    scheme, colon, _ = text.partition("://")
    if colon and scheme in {"gs", "gcs", "az", "azure", "http", "https"}:
        raise SpecError(
            FIELD,
            f"{scheme}:// cannot be written by a pod: its recorder has Python's standard library only",
            hint="use s3://BUCKET/PREFIX with AWS_ENDPOINT_URL of an S3-compatible server, or a volume that all pods share: volume:/path",
        )
    raise SpecError(
        FIELD, f"{text[:100]!r} is no log store", hint="allowed: volume:/path, file:///path, or s3://BUCKET/PREFIX"
    )


def check_log_store(section: Kubernetes) -> None:
    """Refuse a store that cannot be one.

    Raises:
        SpecError: with what is allowed.
    """
    if section.log_store is None:
        return
    place = log_store_place(section.log_store)
    if place.kind == "s3":
        return
    mounts = [mount["mountPath"] for mount in section.volume_mounts if not mount.get("readOnly")]
    if section.workspace is not None:
        mounts.append(section.workspace.path)
    if not any(place.path == mount.rstrip("/") or place.path.startswith(f"{mount.rstrip('/')}/") for mount in mounts):
        raise SpecError(
            FIELD,
            f"{place.path!r} lies on no volume of the pods that can be written to, so the lines would end with the container",
            hint="name a path below one of kubernetes.volume_mounts, or below kubernetes.workspace.path",
        )
