"""Compiled jobs for the tests of this folder, and a reader of manifests that follows Kubernetes' own rules."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from rankfall.backends.kubernetes.manifests.compile import compile_job
from rankfall.backends.kubernetes.manifests.request import Compiled, ServedFacts
from rankfall.backends.plan import SlotPlan
from rankfall.model import JobSpec, spec_from
from rankfall.rundir import RunDir

KINDS = frozenset({"Job", "JobSet", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"})
SERVED = ServedFacts(version=(1, 34), kinds=KINDS, pod_overrides="podSpecOverrides")
BACKENDS = ("job", "jobset", "trainjob")
BUNDLE = b"PK\x05\x06 a bundle"


def spec(**fields: Any) -> JobSpec:
    """A checked spec with an image."""
    fields = {"backend": "job", "command": ["train.py"], **fields}
    section = fields.pop("kubernetes", {})
    return spec_from({**fields, "kubernetes": {"image": "registry/train:1", **section}})


def slot_of(run: RunDir) -> SlotPlan:
    """Slot 0 of the first attempt, as a cluster's backend plans it."""
    return SlotPlan(
        slot=0,
        role="worker",
        node="",
        argv=(),
        env={},
        cwd="",
        slot_dir=str(run.slot_dir(1, "worker", 0)),
        stream_dir=str(run.stream_dir(1, "worker", 0)),
    )


def compiled(job: JobSpec, *, served: ServedFacts = SERVED, attempt: int = 1, **options: Any) -> Compiled:
    options = {"run": "job-0a1b2c", "token": "t0k3n", "inside_zip": BUNDLE, **options}
    return compile_job(job, attempt=attempt, served=served, **options)


def workload(made: Compiled) -> dict[str, Any]:
    return made.objects[made.workload]


def child(made: Compiled) -> dict[str, Any]:
    """The spec of the Job that makes the pods, whatever it is wrapped in."""
    first = made.objects[0]
    if first["kind"] == "Job":
        return first["spec"]
    holder = first["spec"]["template"]["spec"] if first["kind"] == "TrainingRuntime" else first["spec"]
    return holder["replicatedJobs"][0]["template"]["spec"]


def template(made: Compiled) -> dict[str, Any]:
    return child(made)["template"]


def container(made: Compiled) -> dict[str, Any]:
    return next(one for one in template(made)["spec"]["containers"] if one["name"] == made.container)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Byte for byte what the kubelet makes of a text: its expander, written down once more, byte by byte as it goes there."""
    data, out, cursor, mark = text.encode(), bytearray(), 0, 0
    while cursor < len(data):
        if data[cursor : cursor + 1] == b"$" and cursor + 1 < len(data):
            out += data[mark:cursor]
            read, is_variable, advance = _read(data[cursor + 1 :])
            name = read.decode("utf-8", "replace")
            out += variables.get(name, f"$({name})").encode() if is_variable else read
            cursor += advance
            mark = cursor + 1
        cursor += 1
    return (bytes(out) + data[mark:]).decode("utf-8", "replace")


def _read(rest: bytes) -> tuple[bytes, bool, int]:
    if rest[:1] == b"$":
        return b"$", False, 1
    if rest[:1] == b"(":
        end = rest.find(b")", 1)
        return (rest[1:end], True, end + 1) if end > 0 else (b"$(", False, 1)
    # Go makes a rune of this one byte: of a letter outside ASCII only half is left.
    return b"$" + chr(rest[0]).encode(), False, 1


def secret_data(made: Compiled) -> dict[str, dict[str, str]]:
    """What stands in Secrets, by their names."""
    return {
        item["metadata"]["name"]: {key: base64.b64decode(value).decode() for key, value in item["data"].items()}
        for item in made.objects
        if item["kind"] == "Secret"
    }


def started(made: Compiled, *, slot: int = 0) -> tuple[list[str], dict[str, str]]:
    """Command and variables of a slot's process, as the kubelet would hand them over."""
    one = container(made)
    variables: dict[str, str] = {}
    hidden = secret_data(made)
    for item in one["env"]:
        if "value" in item:
            variables[item["name"]] = expand(item["value"], variables)
        elif (reference := item["valueFrom"].get("secretKeyRef")) and reference["name"] in hidden:
            variables[item["name"]] = hidden[reference["name"]][reference["key"]]
        else:
            path = item["valueFrom"].get("fieldRef", {}).get("fieldPath", "")
            variables[item["name"]] = str(slot) if "job-completion-index" in path else f"<{path}>"
    return [expand(word, variables) for word in one["command"]], variables
