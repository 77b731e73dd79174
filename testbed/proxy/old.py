"""Answers of an older server from a folder: version, discovery, OpenAPI.

The folder (``old_answers.make`` fills it) holds ``version.json``, ``discovery/`` and ``v3/`` with files named as in Kubernetes' own ``api`` folder
(``apis__batch__v1.json``, ``apis__batch__v1_openapi.json``) and ``swagger.json``. Discovery is answered in its plain form, which every client
takes; the aggregated form is an offer that a server need not make. OpenAPI is answered as JSON; a client that takes nothing but
protobuf meets an error, as kubectl's old validation would.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import TestbedError

_JSON = "application/json"
# Groups that are Kubernetes' own. Custom resources of the project's own kind carry x-k8s.io and never match; metrics.k8s.io is an add-on.
_OWN = re.compile(r"^([a-z]+|(?!metrics\.)([a-z]+\.)+k8s\.io)$")

Found = tuple[int, list[tuple[str, str]], bytes]


class Merge:
    """Puts what is not Kubernetes' own from the real server's list of groups beside the older server's.

    Args:
        ours: the older server's document.
        field: ``groups`` (a list of objects with a name) or ``paths`` (a map of paths).
    """

    def __init__(self, ours: dict[str, Any], field: str) -> None:
        self._ours, self._field = ours, field

    def __call__(self, document: Any) -> None:
        """Change the real server's document."""
        theirs = document.get(self._field) if isinstance(document, dict) else None
        if isinstance(theirs, list):
            document[self._field] = self._ours[self._field] + [
                item for item in theirs if not is_own(item.get("name", ""))
            ]
        elif isinstance(theirs, dict):
            kept = {path: value for path, value in theirs.items() if not _is_own_path(path)}
            document[self._field] = self._ours[self._field] | kept


class Answers:
    """Answers of one version.

    Args:
        folder: of them.

    Raises:
        TestbedError: it is none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not (folder / "version.json").is_file():
            raise TestbedError(
                f"{folder} holds no answers of an older server",
                hint="make them: testbed.proxy.old_answers.make(VERSION)",
            )

    def find(self, path: str) -> Found | Merge | None:
        """The answer to a GET of this path; None = the real server's.

        Returns:
            Status, headers and body; or how the real server's list is changed.
        """
        parts = path.strip("/").split("/")
        match parts:
            case ["version"]:
                return _answer(self._file("version.json"))
            case ["api"] | ["api", "v1"]:
                return self._discovery(parts)
            case ["apis"]:
                return Merge(msgspec.json.decode(self._read("discovery/apis.json")), "groups")
            case ["apis", group] | ["apis", group, _]:
                return self._discovery(parts) if is_own(group) else None
            case ["openapi", "v2"]:
                return _answer(self._file("swagger.json"))
            case ["openapi", "v3"]:
                return Merge({"paths": self._index()}, "paths")
            case ["openapi", "v3", *rest]:
                if not _is_own_path("/".join(rest)):
                    return None
                return _answer(self._file(f"v3/{'__'.join(rest)}_openapi.json"))
            case _:
                return None

    def _discovery(self, parts: list[str]) -> Found:
        return _answer(self._file(f"discovery/{'__'.join(parts)}.json"))

    def _index(self) -> dict[str, Any]:
        found = {}
        for file in sorted((self._folder / "v3").glob("*_openapi.json")):
            path = file.name.removesuffix("_openapi.json").replace("__", "/")
            digest = hashlib.sha256(file.read_bytes()).hexdigest().upper()
            found[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return found

    def _file(self, name: str) -> bytes | None:
        # A path of a request may hold anything; only plain names of the folder are served.
        path = self._folder / name
        return path.read_bytes() if ".." not in name and path.is_file() else None

    def _read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()


@cache
def answers(folder: str) -> Answers:
    """The answers in a folder."""
    return Answers(Path(folder))


def is_own(group: str) -> bool:
    """Whether a group is part of Kubernetes itself."""
    return _OWN.match(group) is not None


def _is_own_path(path: str) -> bool:
    parts = path.split("/")
    return parts[0] != "apis" or len(parts) == 1 or is_own(parts[1])


def _answer(body: bytes | None) -> Found:
    # What a server says of a path that it does not know at all.
    status, kind, text = (
        (200, _JSON, body) if body is not None else (404, "text/plain; charset=utf-8", b"404 page not found\n")
    )
    return status, [("Content-Type", kind), ("Content-Length", str(len(text)))], text
