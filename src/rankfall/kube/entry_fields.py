"""Typed access to the fields of one entry of a kubeconfig; what is unknown, of the wrong type or gone from Kubernetes is refused by name."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from rankfall.kube.errors import KubeConfigError
from rankfall.kube.secret import excerpt

Entry = Mapping[str, Any]


class Fields:
    """One entry of a kubeconfig, with typed access to its fields.

    Args:
        entry: the fields.
        what: names it in messages: ``user "bob"``.
        path: of its file, against which relative paths are resolved.
        known: names of fields that it may have.
    """

    def __init__(self, entry: Entry, *, what: str, path: str, known: frozenset[str]) -> None:
        self._entry, self.what, self.path = entry, what, path
        for name in entry:
            if name == "auth-provider":
                self.refuse(
                    "auth-provider is gone from Kubernetes since 1.26",
                    "log in again with a tool that writes an exec plug-in",
                )
            if name not in known:
                self.refuse(f"unknown field {excerpt(str(name), limit=60)!r}", "correct its spelling or remove it")

    def refuse(self, why: str, hint: str) -> NoReturn:
        """Refuse this entry."""
        raise KubeConfigError(f"{self.what} in {self.path}: {why}", hint=hint)

    def text(self, name: str) -> str | None:
        """A text; None when it is missing or empty, as kubectl has it."""
        value = self._entry.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            self.refuse(f"{name} must be a text", "put it in quotes")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false when it is missing."""
        value = self._entry.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(f"{name} must be true or false", "write it without quotes")
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self._entry.get(name) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self.refuse(f"{name} must be a list of texts", "put each in quotes")
        return tuple(value)

    def mapping(self, name: str) -> Entry | None:
        """Fields below this one."""
        value = self._entry.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(f"{name} must hold fields", "see kubectl config view")
        return cast("Entry | None", value)

    def data(self, name: str) -> bytes | None:
        """Bytes, written as base64."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError):
            self.refuse(f"{name} is no base64", "fetch this kubeconfig again")

    def file(self, name: str) -> str | None:
        """A path; a relative one is meant from the folder of its file."""
        value = self.text(name)
        return None if value is None else str(Path(self.path).parent.absolute() / value)

    def file_or_data(self, name: str) -> tuple[str | None, bytes | None]:
        """A path, or the content itself as base64; both at once are refused, as kubectl does."""
        path, data = self.file(name), self.data(f"{name}-data")
        if path is not None and data is not None:
            self.refuse(f"{name} and {name}-data are both given", "keep one of them")
        return path, data
