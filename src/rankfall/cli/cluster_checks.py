"""Checks of ``doctor`` on a cluster: reach, versions, namespace, and the account's rights. Only reads.

``tested_versions.csv`` has the versions that were run; the table in docs/kubernetes.md is compared with it.
"""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rankfall.kube.object_fields import mapping, mappings
from rankfall.model import InfrastructureError, RankfallError
from rankfall.model.patterns import anchored
from rankfall.model.run_status import Check, CheckState

if TYPE_CHECKING:
    from rankfall.backends.kubernetes.rights import Need
    from rankfall.cli.target import Where
    from rankfall.kube.auth.access import Access
    from rankfall.kube.client import Kube
    from rankfall.kube.discovery import Served


class Tested(NamedTuple):
    """A version that was run; ``extent``: ``jobs``, or ``definitions`` if only its CRDs checked manifests."""

    product: str
    version: str
    api: str
    date: str
    extent: str


@cache
def versions_run() -> tuple[Tested, ...]:
    """Returns the table of versions, oldest first within a product."""
    text = resources.files(__package__).joinpath("tested_versions.csv").read_text("utf-8")
    return tuple(Tested(**row) for row in csv.DictReader(text.splitlines()))


def version_check(product: str, version: str, *, name: str, text: str) -> Check:
    """Compares a version such as ``v1.34.4-gke.1`` with the table; an untried one is a note."""
    rows = [row for row in versions_run() if row.product == product]
    found = _VERSION.fullmatch(version)
    number = found[1] if found else ""
    for row in rows:
        if row.version == number and row.extent == "jobs":
            return Check(name=name, state="pass", text=f"{text}: run on {row.date}")
    extent = "untried but for its definitions" if any(row.version == number for row in rows) else "untried"
    return Check(
        name=name, state="note", text=f"{text}: {extent}; jobs were run with {_run_with(product)}", next=_UNTRIED
    )


def _run_with(product: str) -> str:
    return ", ".join(
        f"{row.version} ({row.date})" for row in versions_run() if row.product == product and row.extent == "jobs"
    )


# With a vendor's or a build's suffix.
_VERSION: Final = anchored(r"v?(\d{1,5}\.\d{1,5}\.\d{1,5})(?:[-+].*)?", limit=512)
_UNTRIED: Final = "try one small job first; docs/kubernetes.md#versions has the table"
# Seconds for one connection, one request, and everything: no dead server holds doctor up.
_CONNECT_S: Final = 3.0
_REQUEST_S: Final = 5.0
_TOTAL_S: Final = 20.0
_RATE: Final = 100.0
# Characters of a server's text.
_SHORT: Final = 80


class _Product(NamedTuple):
    """A controller, its API group, and its usual Deployment, whose image tag is its version."""

    title: str
    name: str
    api_version: str
    backends: tuple[str, ...]
    namespace: str
    deployment: str


_PRODUCTS: Final = (
    _Product(
        "JobSet",
        "jobset",
        "jobset.x-k8s.io/v1alpha2",
        ("jobset", "trainjob"),
        "jobset-system",
        "jobset-controller-manager",
    ),
    _Product(
        "Trainer",
        "trainer",
        "trainer.kubeflow.org/v1alpha1",
        ("trainjob",),
        "kubeflow-system",
        "kubeflow-trainer-controller-manager",
    ),
)


def cluster_checks(where: Where, *, backend: str | None) -> tuple[Check, ...]:
    """Checks the cluster of ``where``.

    ``backend`` None: what the cluster lacks never fails, and neither does its absence if ``where`` names none.
    """
    from rankfall.kube.auth.kubeconfig import access_of  # noqa: PLC0415
    from rankfall.kube.errors import NoKubeConfig  # noqa: PLC0415

    lost: CheckState = "fail" if backend is not None or where.given else "warn"
    try:
        access = access_of(where)
    except NoKubeConfig as error:
        state: CheckState = "note" if lost == "warn" else lost
        return (Check(name="cluster", state=state, text=f"no cluster was checked: {error.message}", next=error.hint),)
    except RankfallError as error:
        return (_refused(error, state=lost, text="no cluster was checked"),)
    found: list[Check] = []
    try:
        asyncio.run(_check(access, found, backend=backend))
    except (RankfallError, TimeoutError) as error:
        return (_refused(error, state=lost, text=f"context {access.context}"), *found)
    return (Check(name="cluster", state="pass", text=f"context {access.context}: {access.server} answers"), *found)


def _refused(error: RankfallError | TimeoutError, *, state: CheckState, text: str) -> Check:
    if isinstance(error, TimeoutError):
        error = InfrastructureError(
            f"no complete answer within {_TOTAL_S:g} s", hint="check the network and the plug-in of your login"
        )
    return Check(name="cluster", state=state, text=f"{text}: {error.message}", next=error.hint)


async def _check(access: Access, found: list[Check], *, backend: str | None) -> None:
    """Appends each finding, so that a later error leaves the earlier ones."""
    from rankfall.kube.client import Kube, Limits, Retry  # noqa: PLC0415
    from rankfall.kube.discovery import discover_kinds  # noqa: PLC0415
    from rankfall.kube.resources import JOBS, WORKLOADS  # noqa: PLC0415

    limits = Limits(connect=_CONNECT_S, pool=_TOTAL_S, total=_REQUEST_S)
    client = Kube(access, rate=_RATE, burst=int(_RATE), retry=Retry(attempts=1), limits=limits)
    async with asyncio.timeout(_TOTAL_S), client as kube:
        version = _word((await kube.raw("/version", what="the server's version")).get("gitVersion"))
        found.append(version_check("Kubernetes", version, name="kubernetes", text=f"Kubernetes {version}"))
        served = await discover_kinds(kube, (JOBS, *WORKLOADS.values()))
        found += await asyncio.gather(*(_product(kube, served, each, backend=backend) for each in _PRODUCTS))
        found.append(await _namespace(kube, wanted=backend is not None))
        found += await _rights(kube, served, backend=backend)


async def _product(kube: Kube, served: Served, product: _Product, *, backend: str | None) -> Check:
    from rankfall.kube.errors import Forbidden, ObjectNotFound  # noqa: PLC0415
    from rankfall.kube.resources import DEPLOYMENTS  # noqa: PLC0415

    group, _, needed = product.api_version.partition("/")
    versions = served.versions(group)
    if product.api_version not in served.group_versions:
        there = f"serves {product.title} {', '.join(versions)}, not {needed}" if versions else f"has no {product.title}"
        return Check(
            name=product.name,
            state="fail" if backend in product.backends else "note",
            text=f"the cluster {there}, which --backend {' and --backend '.join(product.backends)} need",
            next=f"install {product.title} with {needed}, or use --backend job",
        )
    try:
        found = await kube.get(DEPLOYMENTS, product.deployment, namespace=product.namespace)
        version = _tag(found)
    except (Forbidden, ObjectNotFound):
        version = None
    text = f"{product.title} {version or 'of unknown version'}, API {', '.join(versions)}"
    if version is not None:
        return version_check(product.title, version, name=product.name, text=text)
    return Check(
        name=product.name,
        state="note",
        text=f"{text}: jobs were run with {_run_with(product.title)}; other versions are untried",
        next=f"compare it with the image of the Deployment {product.deployment}; its usual namespace is {product.namespace}",
    )


def _tag(deployment: Mapping[str, Any]) -> str | None:
    """Returns the first image tag that is a version."""
    pod = mapping(mapping(mapping(deployment, "spec"), "template"), "spec")
    for container in mappings(pod, "containers"):
        tag = str(container.get("image")).partition("@")[0].rpartition(":")[2]
        if _VERSION.fullmatch(tag):
            return _word(tag).removeprefix("v")
    return None


async def _namespace(kube: Kube, *, wanted: bool) -> Check:
    from rankfall.kube.errors import Forbidden, ObjectNotFound  # noqa: PLC0415
    from rankfall.kube.resources import NAMESPACES, QUOTAS  # noqa: PLC0415

    name = kube.namespace
    try:
        found = await kube.get(NAMESPACES, name)
    except ObjectNotFound:
        hint = f"kubectl create namespace {name}, or name another one with -n"
        return Check(
            name="namespace",
            state="fail" if wanted else "warn",
            text=f"the namespace {name} does not exist",
            next=hint,
        )
    except Forbidden:
        found = {}
    try:
        quotas = (await kube.list(QUOTAS)).items
    except Forbidden:
        quotas = []
    labels = mapping(mapping(found, "metadata"), "labels")
    level = labels.get("pod-security.kubernetes.io/enforce", "privileged")
    spent = sorted({one for quota in quotas for one in _spent(quota)})
    text = f"the namespace {name} exists" if found else f"the account may not read the namespace {name}"
    if spent:
        return Check(
            name="namespace",
            state="warn",
            text=f"{text}, but its quota has no more {', '.join(spent)}",
            next=f"wait until others end, or request more: kubectl describe resourcequota -n {name}",
        )
    if level in {"baseline", "restricted"}:
        return Check(
            name="namespace",
            state="note",
            text=f"{text}; it enforces the pod security level {level}",
            next="kubernetes.pod in the job file sets the securityContext that this level requires",
        )
    return Check(name="namespace", state="pass" if found else "note", text=text)


def _spent(quota: Mapping[str, Any]) -> Iterable[str]:
    """Yields resources whose use has reached the limit; unequal spellings of one quantity count as room."""
    status = mapping(quota, "status")
    hard, used = mapping(status, "hard"), mapping(status, "used")
    return (_word(name) for name, limit in hard.items() if limit == used.get(name))


async def _rights(kube: Kube, served: Served, *, backend: str | None) -> list[Check]:
    from rankfall.backends.kubernetes import rights  # noqa: PLC0415
    from rankfall.kube.resources import WORKLOADS  # noqa: PLC0415
    from rankfall.nodes.manifests import cluster, controller  # noqa: PLC0415

    kinds = {name: on for name, on in WORKLOADS.items() if served.serves(on)}
    backends = [name for name in rights.BACKENDS if name in kinds and backend in {None, name}]
    runs = {name: rights.needs_of(name) for name in backends}
    foreign = rights.needs_of_foreign(tuple(kinds.values()))
    nodes = {
        "read them for verdicts": {
            rights.Need(rights.OF_NODES.on.group, rights.OF_NODES.name, verb) for verb in rights.OF_NODES.verbs
        },
        "report failures to them": _ruled(cluster.CLUSTER_RULES),
        "taint and release them": _ruled(controller.CLUSTER_RULES),
    }
    needs = [*(one for each in runs.values() for one in each), *foreign]
    ours, everywhere = await asyncio.gather(
        _allowed(kube, set(needs), namespace=kube.namespace),
        _allowed(kube, set().union(*nodes.values()), namespace=None),
    )
    lost: CheckState = "fail" if backend is not None else "warn"
    checks = [
        _right(
            f"run-{name}",
            f"--backend {name}",
            {need: without for need, without in each.items() if need not in ours},
            state=lost,
            hint=f"have an administrator bind this Role: rankfall config rights --backend {name} -n {kube.namespace}",
            namespace=kube.namespace,
        )
        for name, each in runs.items()
    ]
    checks.append(
        _right(
            "foreign",
            f"why, status and logs of {', '.join(kinds)}",
            {need: without for need, without in foreign.items() if need not in ours},
            state="warn",
            hint="request these rights from an administrator; the role view of Kubernetes has most of them",
            namespace=kube.namespace,
        )
    )
    may = [title for title, each in nodes.items() if each <= everywhere]
    may_not = [title for title in nodes if title not in may]
    text = "; ".join(
        f"this account {word} {', '.join(each)}" for word, each in (("may", may), ("may not", may_not)) if each
    )
    checks.append(
        Check(
            name="nodes",
            state="note" if may_not else "pass",
            text=f"nodes: {text}",
            next="only if you need it: docs/kubernetes.md#rights, docs/node-health.md#rights" if may_not else None,
        )
    )
    return checks


def _right(name: str, what: str, missing: Mapping[Need, str], *, state: CheckState, hint: str, namespace: str) -> Check:
    """Check of rights: ``state`` if a missing one stops ``what``, ``warn`` if it only limits it."""
    if not missing:
        return Check(name=name, state="pass", text=f"{what}: all rights in {namespace}")
    needed = _listed(need for need, without in missing.items() if not without)
    if needed:
        return Check(name=name, state=state, text=f"{what}: in {namespace} this account may not {needed}", next=hint)
    effects = "; ".join(dict.fromkeys(missing.values()))
    return Check(
        name=name,
        state="warn",
        text=f"{what}: in {namespace} this account may not {_listed(missing)}: {effects}",
        next=hint,
    )


def _listed(needs: Iterable[Need]) -> str:
    """Formats rights: ``create, delete pods; get jobs.batch``."""
    verbs: dict[str, list[str]] = {}
    for need in needs:
        resource = f"{need.resource}.{need.group}" if need.group else need.resource
        verbs.setdefault(resource, []).append(need.verb)
    return "; ".join(f"{', '.join(each)} {resource}" for resource, each in verbs.items())


def _ruled(rules: Iterable[Mapping[str, Any]]) -> set[Need]:
    from rankfall.backends.kubernetes.rights import Need  # noqa: PLC0415

    return {
        Need(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def _allowed(kube: Kube, needs: set[Need], *, namespace: str | None) -> set[Need]:
    """Queries each right by itself: the server's list of rules may lack those of a webhook."""
    from rankfall.kube.resources import ACCESS_REVIEWS  # noqa: PLC0415

    async def one(need: Need) -> bool:
        plural, _, subresource = need.resource.partition("/")
        place = {} if namespace is None else {"namespace": namespace}
        wanted = {"group": need.group, "resource": plural, "subresource": subresource, "verb": need.verb} | place
        body = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": wanted},
        }
        return mapping(await kube.create(ACCESS_REVIEWS, body), "status").get("allowed") is True

    ordered = sorted(needs)
    answers = await asyncio.gather(*map(one, ordered))
    return {need for need, allowed in zip(ordered, answers, strict=True) if allowed}


def _word(value: object) -> str:
    """Returns a server's word, bounded, on one line."""
    return ascii(str(value)[:_SHORT])[1:-1]
