"""Lists what the image holds beside Rankfall: a CycloneDX document (SBOM) and a table of licences, both in ``build/``.

A virtual environment is made of ``deploy/requirements.txt`` alone, with hashes required, and CycloneDX's own tool describes it. The same lock
gives the same bytes under the same Python and platform. Ends with 1 when a dependency is missing in the result, or one in it has no licence. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "deploy" / "requirements.txt"
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+))?", re.MULTILINE)
# As metadata of packages names licences that have no identifier there.
_CLASSIFIER: Final = "License :: OSI Approved :: "


def main() -> int:
    """Write both files; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "build", metavar="FOLDER", help="default: build")
    parser.add_argument("--offline", action="store_true", help="take packages from uv's cache only")
    given = parser.parse_args()
    into: Path = given.into
    into.mkdir(parents=True, exist_ok=True)
    document = _described(into, offline=given.offline)
    rows = {_normal(one["name"]): (one["name"], one["version"], licence(one)) for one in document["components"]}
    problems = [f"{name} has no licence in its metadata" for name, _, found in rows.values() if not found]
    # A marker leaves a package out under this Python or platform; nothing else may.
    for name, version, marker in pins(LOCK.read_text()):
        row = rows.get(_normal(name))
        if (row is None and not marker) or (row is not None and row[1] != version):
            problems.append(f"{LOCK.name} has {name} {version}, the environment has {row[1] if row else 'none'}")
    table = ["| package | version | licence |", "| --- | --- | --- |"]
    table += [f"| {name} | {version} | {found} |" for _, (name, version, found) in sorted(rows.items())]
    (into / "licences.md").write_text("\n".join(table) + "\n")
    for problem in problems:
        sys.stderr.write(f"sbom: {problem}\n")
    sys.stderr.write(f"sbom: {len(rows)} packages: {into / 'sbom.cdx.json'}, {into / 'licences.md'}\n")
    return 1 if problems else 0


def pins(lock: str) -> list[tuple[str, str, str]]:
    """Name, version and marker (or nothing) of each package of a locked requirements file."""
    return [(name, version, (marker or "").strip()) for name, version, marker in _PIN.findall(lock)]


def licence(component: dict[str, Any]) -> str:
    """A component's licences in one cell, as its package declares them; nothing where it declares none."""
    found = []
    for choice in component.get("licenses", ()):
        said = choice.get("license", {})
        text = choice.get("expression") or said.get("id") or said.get("name") or ""
        found.append(" ".join(text.removeprefix(_CLASSIFIER).split())[:100].replace("|", "/"))
    return ", ".join(text for text in found if text)


def _described(into: Path, *, offline: bool) -> dict[str, Any]:
    folder = into / "sbom-environment"
    python = folder / "bin" / "python"
    result = into / "sbom.cdx.json"
    uv = (str(ROOT / "scripts" / "uv"), *(("--offline",) if offline else ()))
    steps = (
        (*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)),
        (*uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", "--only-binary", ":all:", str(LOCK)),
        (
            str(Path(sys.executable).parent / "cyclonedx-py"),
            *("environment", str(python), "--pyproject", str(ROOT / "pyproject.toml")),
            *("--output-reproducible", "--of", "JSON", "-o", str(result)),
        ),
    )  # fmt: skip
    for step in steps:
        subprocess.run(step, check=True)
    document: dict[str, Any] = json.loads(result.read_bytes())
    return document


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
