"""Flyte's error documents, written by the protobuf library from the published definition: the oracle of our reader and of our writer."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TEXT, _INT64, _INT32, _ENUM, _MESSAGE = 9, 3, 5, 14, 11


def _definition() -> descriptor_pb2.FileDescriptorProto:
    """flyteidl/core/errors.proto, as far as a ContainerError goes, with the two fields that distributed errors added."""
    file = descriptor_pb2.FileDescriptorProto(name="errors.proto", package="flyteidl.core", syntax="proto3")
    stamp = file.message_type.add(name="Timestamp")
    stamp.field.add(name="seconds", number=1, type=_INT64, label=1)
    stamp.field.add(name="nanos", number=2, type=_INT32, label=1)
    error = file.message_type.add(name="ContainerError")
    kinds = error.enum_type.add(name="Kind")
    kinds.value.add(name="NON_RECOVERABLE", number=0)
    kinds.value.add(name="RECOVERABLE", number=1)
    origins = error.enum_type.add(name="ErrorKind")
    for number, name in enumerate(("UNKNOWN", "USER", "SYSTEM")):
        origins.value.add(name=name, number=number)
    error.field.add(name="code", number=1, type=_TEXT, label=1)
    error.field.add(name="message", number=2, type=_TEXT, label=1)
    error.field.add(name="kind", number=3, type=_ENUM, type_name=".flyteidl.core.ContainerError.Kind", label=1)
    error.field.add(name="origin", number=4, type=_ENUM, type_name=".flyteidl.core.ContainerError.ErrorKind", label=1)
    error.field.add(name="timestamp", number=5, type=_MESSAGE, type_name=".flyteidl.core.Timestamp", label=1)
    error.field.add(name="worker", number=6, type=_TEXT, label=1)
    document = file.message_type.add(name="ErrorDocument")
    document.field.add(name="error", number=1, type=_MESSAGE, type_name=".flyteidl.core.ContainerError", label=1)
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_definition())  # type: ignore[no-untyped-call]
_DOCUMENT: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("flyteidl.core.ErrorDocument"))


def document(
    message: str = "ValueError: bad thing",
    *,
    code: str = "USER:Unknown",
    recoverable: bool = False,
    origin: int = 1,
    at: int | None = None,
    worker: str = "",
) -> bytes:
    """An ErrorDocument; ``at`` in nanoseconds since the epoch."""
    found = _DOCUMENT()
    found.error.code, found.error.message, found.error.worker = code, message, worker
    found.error.kind, found.error.origin = int(recoverable), origin
    if at is not None:
        found.error.timestamp.seconds, found.error.timestamp.nanos = divmod(at, 1_000_000_000)
    data: bytes = found.SerializeToString()
    return data


def parsed(data: bytes) -> Any:
    """The error of a document, as the protobuf library reads it."""
    return _DOCUMENT.FromString(data).error
