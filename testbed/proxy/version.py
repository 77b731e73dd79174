"""What an API server says of its version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec


@dataclass(frozen=True)
class Version:
    """Of one release.

    Attributes:
        number: such as 1.25.16.
        commit: of git; empty = the module proxy does not say.
        date: of the release, ISO 8601.
    """

    number: str
    commit: str
    date: str

    @classmethod
    def of_module(cls, module: dict[str, Any]) -> Version:
        """From what ``go mod download -json`` prints."""
        info = msgspec.json.decode(Path(module["Info"]).read_bytes())
        return cls(module["Version"].removeprefix("v"), (info.get("Origin") or {}).get("Hash", ""), info["Time"])

    def answer(self) -> dict[str, str]:
        """The body of ``/version``."""
        major, minor, _ = self.number.split(".")
        return {
            "major": major,
            "minor": minor,
            "gitVersion": f"v{self.number}",
            "gitCommit": self.commit,
            "gitTreeState": "clean",
            "buildDate": self.date,
            "goVersion": "unknown",
            "compiler": "gc",
            "platform": "linux/amd64",
        }
