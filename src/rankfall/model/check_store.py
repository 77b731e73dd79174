"""Whether a job's record store and error file can work: who writes there has the standard library only, and must be there at all."""

from __future__ import annotations

import re
from typing import Final

from rankfall.model.errors import SpecError
from rankfall.model.spec import JobSpec

_FIELD: Final = "$.record_store"
_FILE: Final = re.compile(r"file://(/[\w.@+-]+)+/?")
_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=+-]+)*/?")
_MAX: Final = 1024
_ERROR_FILE: Final = re.compile(r"(/[\w.@+-]+)*/[\w.@+-]*\*?[\w.@+-]*\.(?:json|pb)")
# What others would be called, and how they are reached all the same.
_OTHERS: Final = ("gs://", "gcs://", "az://", "azure://", "abfs://", "abfss://", "http://", "https://")


def check_record_store(spec: JobSpec) -> None:
    """Refuse a store that slots cannot write.

    Raises:
        SpecError: with what is allowed.
    """
    url = spec.record_store
    if url is None:
        return
    if url.startswith(_OTHERS):
        raise SpecError(
            _FIELD,
            f"{url.partition('://')[0]}:// cannot be written by the standard library, which is all that travels into a slot",
            hint="use s3://BUCKET/PREFIX with AWS_ENDPOINT_URL of an S3-compatible server, or file:///DIR of a shared volume",
        )
    if len(url) > _MAX or not (_FILE.fullmatch(url) or _S3.fullmatch(url)) or "/../" in f"{url}/":
        raise SpecError(
            _FIELD, f"{url[:100]!r} is no store", hint="allowed: file:///DIR with an absolute path, s3://BUCKET/PREFIX"
        )
    if spec.inside == "off":
        raise SpecError(
            _FIELD, "with inside: off nobody is in the slots who could write there", hint="use inside: auto"
        )
    if url.startswith("file://") and spec.backend != "local":
        path = url.removeprefix("file://").rstrip("/")
        if not any(path == seen or path.startswith(f"{seen}/") for seen in _mounted(spec)):
            raise SpecError(
                _FIELD,
                f"{path} is on no volume of the pods: what is written there is gone with them",
                hint="name a path below one of $.kubernetes.volume_mounts or the workspace, mounted at the same path here",
            )


def check_error_file(spec: JobSpec) -> None:
    """Refuse a file that no older reader would know.

    Raises:
        SpecError: with what is allowed.
    """
    path = spec.error_file
    if path is None:
        return
    if len(path) > _MAX or not _ERROR_FILE.fullmatch(path) or "/../" in path:
        raise SpecError(
            "$.error_file",
            f"{path[:100]!r} is no absolute path of a .json or .pb file",
            hint="as: /out/error.json (torchelastic's form), /out/error-*.pb (Flyte's, one for each slot)",
        )
    if spec.inside == "off":
        raise SpecError("$.error_file", "with inside: off nobody is in the slots who could write it")


def _mounted(spec: JobSpec) -> list[str]:
    found = [str(mount.get("mountPath", "")).rstrip("/") for mount in spec.kubernetes.volume_mounts]
    if spec.kubernetes.workspace is not None:
        found.append(spec.kubernetes.workspace.path.rstrip("/"))
    return [path for path in found if path]
