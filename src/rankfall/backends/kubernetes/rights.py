"""Table of Rankfall's rights in a namespace: verb, resource, backend, reason.

The table defines the Role of ``rankfall config rights`` and of test accounts. ``python -m
rankfall.backends.kubernetes.rights`` writes the section "Rights" of docs/kubernetes.md; a test compares both.

A new right is a row in ``RIGHTS`` next to its resource's rows, or verbs in an existing row.
``tests/cluster/test_rights.py`` names unused rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from rankfall.kube.resources import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    JOBSETS,
    LEASES,
    NODES,
    PODS,
    PVCS,
    SECRETS,
    SERVICES,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    Resource,
)

Verb = Literal["create", "get", "list", "watch", "patch", "delete"]
VERBS: Final[tuple[Verb, ...]] = ("create", "get", "list", "watch", "patch", "delete")
BACKENDS: Final = ("job", "jobset", "trainjob")

_WORKLOAD: Final[tuple[Verb, ...]] = VERBS
_COMPANION: Final[tuple[Verb, ...]] = ("create", "get", "list", "watch", "delete")
_SEEN: Final[tuple[Verb, ...]] = ("list", "watch")
_READ: Final[tuple[Verb, ...]] = ("get", "list", "watch")


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """A row: verbs on one resource in the jobs' namespace.

    Attributes:
        on: The resource.
        subresource: As ``log``, or empty.
        backends: Backends that need it.
        why: Purpose, and effect of its absence; Markdown.
        without: Effect if the account lacks it, in few words; empty if no job runs then.
    """

    on: Resource
    verbs: tuple[Verb, ...]
    why: str
    subresource: str = ""
    backends: tuple[str, ...] = BACKENDS
    without: str = ""

    @property
    def name(self) -> str:
        """Name as in a Role: ``pods``, ``pods/log``."""
        return f"{self.on.plural}/{self.subresource}" if self.subresource else self.on.plural


_OWN: Final = "the workload: created suspended, released, stopped by `suspend`, read, and removed by its UID with a wait for its end"
_CHILD: Final = (
    "a removal also waits for the end of these children; without the right it prints a message and does not wait. "
    "The recorder of an `unattended` run needs the right, because it reads them"
)
_NO_WAIT: Final = "removals do not wait for children; no unattended runs"
_NO_COPIES: Final = "no workspaces, no rankfall cp --claim"
_NO_EXEC: Final = "fewer ranks are matched to pods"
_COPIES: Final = "the temporary pod that copies files to and from a workspace. Only with `kubernetes.workspace`, or `rankfall cp --claim`"

RIGHTS: Final = (
    Right(on=JOBS, verbs=_WORKLOAD, backends=("job",), why=_OWN),
    Right(on=JOBS, verbs=_SEEN, backends=("jobset", "trainjob"), why=_CHILD, without=_NO_WAIT),
    Right(on=JOBSETS, verbs=_WORKLOAD, backends=("jobset",), why=_OWN),
    Right(on=JOBSETS, verbs=_SEEN, backends=("trainjob",), why=_CHILD, without=_NO_WAIT),
    Right(on=TRAINJOBS, verbs=_WORKLOAD, backends=("trainjob",), why=_OWN),
    Right(
        on=TRAINING_RUNTIMES,
        verbs=_WORKLOAD,
        backends=("trainjob",),
        why="the runtime of one TrainJob: created before it; `patch` sets its owner; the other verbs are for one of an earlier launch. "
        "Not needed with `kubernetes.runtime`",
    ),
    Right(
        on=CONFIG_MAPS,
        verbs=_COMPANION,
        why="the recorder: created; the other verbs are for one of an earlier launch, `delete` also for undoing a refused launch. "
        "Not needed with `inside: off`",
    ),
    Right(
        on=SECRETS,
        verbs=("create", "delete"),
        why="secret values of the job's variables and arguments: created, owned by the workload and removed with it; `delete` for undoing a refused "
        "launch. Rankfall reads no Secret. Only for jobs with such values; without the right they are refused, and `kubernetes.env_from` remains",
        without="jobs with secret values are refused",
    ),
    Right(
        on=SERVICES,
        verbs=_COMPANION,
        backends=("job",),
        why="names of the slots: created; the other verbs as for a ConfigMap",
    ),
    Right(on=SERVICES, verbs=_SEEN, backends=("jobset", "trainjob"), why=_CHILD, without=_NO_WAIT),
    Right(
        on=PODS,
        verbs=("get", "list", "watch"),
        why="state and end of each slot; a removal waits for its pods",
    ),
    Right(
        on=LEASES,
        verbs=("create", "get", "patch", "delete"),
        why="one supervisor per run on all machines: a Lease named after the run, renewed every 10 s, removed with the run's last object",
    ),
    Right(on=PODS, subresource="log", verbs=("get",), why="lines and records of the ranks"),
    Right(
        on=PODS,
        subresource="exec",
        verbs=("get", "create"),
        why="requests stacks from the ranks of a hung job (without the right Rankfall still finds the hang, but no stacks), and copies files to and from "
        "a workspace. Since Kubernetes 1.35 servers also require `create`",
        without="no Python stacks of hung ranks, no copies",
    ),
    Right(on=PODS, verbs=("create", "delete"), why=_COPIES, without=_NO_COPIES),
    Right(
        on=PVCS,
        verbs=("get",),
        why="the claim of a workspace: its existence, and its other users. Only with `kubernetes.workspace`",
        without=_NO_COPIES,
    ),
    Right(
        on=EVENTS,
        verbs=_SEEN,
        why="why a slot did not start or was removed (no free node, a volume that does not mount, a probe), and the same for the pod that copies. "
        "Without the right only the pods' states explain it, and the verdict lists the missing evidence",
        without="fewer reasons why a slot did not start",
    ),
    Right(
        on=EVENTS,
        verbs=("create",),
        why="shows the verdict on the workload, in addition to an annotation. Only with `kubernetes.annotate`; without the right Rankfall prints a message",
        without="no Events with verdicts",
    ),
)


#: Outside namespaces, hence in no Role.
OF_NODES: Final = Right(
    on=NODES,
    verbs=("get", "list", "watch"),
    why="verdicts include reboots and absences of nodes, and the faults of devices that `rankfall agent` recorded",
)


class Need(NamedTuple):
    """One verb on one resource, in the words of a Role."""

    group: str
    resource: str
    verb: str


def needs_of(backend: str) -> dict[Need, str]:
    """Returns what one backend needs, each with the effect of its absence (``Right.without``)."""
    return {
        Need(row.on.group, row.name, verb): row.without
        for row in RIGHTS
        if backend in row.backends
        for verb in row.verbs
    }


def needs_of_foreign(workloads: Collection[Resource]) -> dict[Need, str]:
    """Returns what ``why``, ``status`` and ``logs`` need for jobs that Rankfall did not start."""
    found = {Need(on.group, on.plural, verb): "" for on in workloads for verb in _READ}
    if any(on == TRAINJOBS for on in workloads):
        found[Need(JOBSETS.group, JOBSETS.plural, "get")] = ""
    for row in RIGHTS:
        if row.subresource == "exec":
            found |= {Need(row.on.group, row.name, verb): _NO_EXEC for verb in row.verbs}
        elif row.on in {PODS, EVENTS}:
            found |= {Need(row.on.group, row.name, verb): row.without for verb in row.verbs if verb in _READ}
    return found


def rules(backends: Collection[str] = BACKENDS) -> list[dict[str, Any]]:
    """Returns a Role's rules, grouped by API group and verbs."""
    granted: dict[tuple[str, str], set[Verb]] = {}
    for row in RIGHTS:
        if set(row.backends) & set(backends):
            granted.setdefault((row.on.group, row.name), set()).update(row.verbs)
    joined: dict[tuple[str, tuple[Verb, ...]], list[str]] = {}
    for (group, name), verbs in granted.items():
        ordered = tuple(verb for verb in VERBS if verb in verbs)
        joined.setdefault((group, ordered), []).append(name)
    return [
        {"apiGroups": [group], "resources": names, "verbs": list(verbs)} for (group, verbs), names in joined.items()
    ]


def role(*, namespace: str, backends: Collection[str] = BACKENDS) -> dict[str, Any]:
    """Role as a manifest."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "rankfall", "namespace": namespace},
        "rules": rules(backends),
    }


PAGE: Final = Path("docs") / "kubernetes.md"
BEGIN: Final = "<!-- rights: made by `python -m rankfall.backends.kubernetes.rights` -->\n"
END: Final = "<!-- /rights -->\n"

_HEAD: Final = """
The cluster tests run with an account that has no other rights in the namespace of the jobs: those of all
backends below, or only those of the tested backend. `rankfall config rights` prints this Role; `--backend job` prints only the rights of that backend:

```yaml
"""
_TABLE: Final = """```

| on | verbs | backends | for |
| --- | --- | --- | --- |
"""
_TAIL: Final = f"""
- Rankfall finds the served kinds by discovery, which every authenticated user may use. The service account of the job's image needs no right.
- Nodes are outside namespaces, so they need a ClusterRole: `get`, `list` and `watch` of `nodes`. With it {OF_NODES.why}. With
  only `get`, a message reports that a pod does not end because its node is not ready. `list` and `watch` of `events` in the namespace `default` adds the kubelets' reports on their nodes. Without them a verdict lists this evidence as missing.
  `get` of `leases` in the namespace `kube-node-lease` bounds the clocks of nodes more closely; without it Rankfall uses the stamps of pods and lines and prints no message.
- `rankfall doctor` shows which of these rights your account has.
- Rights to report to a Node that it caused a failure, and to start the next attempt after the taint: [node-health.md](node-health.md#joined-with-jobs).

"""
_BARE: Final = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z][a-z0-9./-]*")


def section(namespace: str = "team-a") -> str:
    """Section "Rights" of docs/kubernetes.md, between its marks."""
    return "".join([_HEAD, manifest(role(namespace=namespace)), _TABLE, *map(_line, RIGHTS), _TAIL])


def manifest(made: Mapping[str, Any]) -> str:
    """Formats a Role as usual YAML, each list in one line."""
    meta = ", ".join(f"{key}: {_word(value)}" for key, value in made["metadata"].items())
    lines = [f"apiVersion: {made['apiVersion']}", f"kind: {made['kind']}", f"metadata: {{{meta}}}", "rules:"]
    for rule in made["rules"]:
        first, *rest = (f"{key}: [{', '.join(map(_word, values))}]" for key, values in rule.items())
        lines += [f"  - {first}", *(f"    {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    """Page with the current section "Rights" between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{section()}{END}{after}"


def _line(row: Right) -> str:
    verbs = ", ".join(verb for verb in VERBS if verb in row.verbs)
    backends = "all" if row.backends == BACKENDS else ", ".join(f"`{one}`" for one in row.backends)
    return f"| `{row.name}` | {verbs} | {backends} | {row.why} |\n"


def _word(text: str) -> str:
    return text if _BARE.fullmatch(text) else json.dumps(text)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
