"""Life cycle of a controller: access, lease, sources and loop.

A lost lease stops everything immediately; the next leader decides unwritten changes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from rankfall.kube.auth.access import Access
from rankfall.kube.auth.kubeconfig import in_pod, load_access, pod_access
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError, ObjectNotFound
from rankfall.kube.lease import HolderIdle, LeaseLock, LeaseLost, boot_clock
from rankfall.model.node_health.run_verdicts import LEASE
from rankfall.nodes.config import ConfigFile, load_config
from rankfall.nodes.controller import metrics
from rankfall.nodes.controller.decision_loop import Loop
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import LOG, Notifier
from rankfall.nodes.controller.persistent_state import LABELS, StateMap
from rankfall.nodes.controller.plan_writer import LeadershipLost, PlanWriter
from rankfall.nodes.controller.remediation import NodeOccupancy, Remediation, Validator
from rankfall.nodes.controller.settings import Settings
from rankfall.nodes.controller.sources.exporters import ExporterSource
from rankfall.nodes.controller.sources.loki import LokiSource, open_sources
from rankfall.nodes.controller.sources.watches import until_done, watch_nodes, watch_switches


def find_access(
    *, kubeconfig: str | None, context: str | None, environ: Mapping[str, str], folder: str | None = None
) -> Access:
    """Returns access to the pod's own cluster, else to the kubeconfig's; logs the choice.

    Raises:
        KubeConfigError: There is neither.
    """
    if kubeconfig is None and context is None:
        if in_pod(environ, folder=folder):
            access = pod_access(namespace=None, environ=environ, folder=folder)
            LOG.info("in-cluster config loaded: %s", access.server)
            return access
        LOG.warning("incluster config failed to load, attempting to use kubeconfig.")
    access = load_access(kubeconfig=kubeconfig, context=context, environ=environ)
    LOG.info("KUBECONFIG loaded: context %s, %s", access.context, access.server)
    return access


NAME: Final = LEASE
#: Seconds until another process takes over; between renewals, of which two may fail.
DURATION_S: Final = 15
RENEW_S: Final = 5.0
#: Seconds between checks: after a kill another leads within 15 s and two checks.
POLL_INTERVAL_S: Final = 1.0


class LeaderElection:
    """The lease of controllers."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        identity: str,
        poll_interval_s: float = POLL_INTERVAL_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self._kube, self._namespace = kube, namespace
        self._poll_interval_s, self._renew_s = poll_interval_s, renew_s
        self._lock = LeaseLock(
            NAME, namespace=namespace, holder=identity, labels=LABELS, notes={}, duration_s=DURATION_S
        )

    async def sure(self) -> bool:
        """True if no other process can hold the lease; renews an expired lease first.

        A late renewal on a busy machine must not restart the work.
        """
        if self._lock.firm():
            return True
        try:
            await self._lock.renew(self._kube)
        except KubeError as error:
            LOG.warning("the lease cannot be renewed: %s", error.message)
        return self._lock.firm()

    async def win(self) -> None:
        """Waits until this process holds the lease.

        Raises:
            LeaseLost: This lease is not a controller's.
        """
        holder_idle, reported, trouble = HolderIdle(), "", ""
        while True:
            found = None
            try:
                found = await self._lock.look(self._kube)
                free = found is None or holder_idle.see(found, now=boot_clock())
                if free and await self._lock.take(self._kube, found):
                    LOG.info("this controller leads")
                    return
                holder = "" if found is None else found.holder
                if holder and holder != reported:
                    LOG.info("%s leads; this one waits", holder)
                    reported = holder
                trouble = ""
            except LeaseLost:
                raise
            except KubeError as error:
                # The missing object is the lease's namespace.
                nowhere = found is None and isinstance(error, ObjectNotFound)
                step = f"; next: kubectl create namespace {self._namespace}" if nowhere else ""
                trouble = _once(f"{error.message}{step}", trouble)
            await asyncio.sleep(self._poll_interval_s)

    async def keep(self) -> None:
        """Renews until the lease is lost; returns then."""
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self._lock.renew(self._kube)
            except LeaseLost as error:
                LOG.warning("%s", error.message)
                return
            except KubeError as error:
                LOG.warning("the lease cannot be renewed: %s", error.message)
                if not self._lock.firm():
                    return

    @asynccontextmanager
    async def given_back(self) -> AsyncIterator[None]:
        """Releases the lease immediately at the end of the block."""
        try:
            yield
        finally:
            with contextlib.suppress(KubeError, TimeoutError):
                async with asyncio.timeout(5):
                    await self._lock.give_back(self._kube)


def _once(message: str, before: str) -> str:
    """Logs ``message`` unless it equals ``before``, because a check runs every second; returns it."""
    if message != before:
        LOG.warning("the lease cannot be read: %s", message)
    return message


#: Seconds between reads of the settings file.
RELOAD_S: Final = 2.0
#: Seconds after which a step is hung.
HANGS_S: Final = 300.0
#: Seconds between reads of other counters.
_NUMBERS_S: Final = 2.0


class Controller:
    """One controller process; ``audit`` receives the lines of the audit trail.

    Attributes:
        metrics: Its metrics.
        port: Port of metrics and probes.

    Raises:
        SpecError: The settings file is invalid.
    """

    def __init__(
        self, settings: Settings, *, access: Access, config: Path | None, audit: Callable[[str], None]
    ) -> None:
        load_config(config)
        self._config = ConfigFile(config)
        self._config.reload()
        # A dry run stays one: it has neither lease nor state.
        dry_run = settings.dry_run or self._config.config.policy.dry_run
        self._settings = msgspec.structs.replace(settings, dry_run=dry_run)
        self._access = access
        self._audit = audit
        self._loop: Loop | None = None
        self._book: NodeCache | None = None
        self._sources: list[LokiSource] = []
        self._logged_problem: str | None = None
        self.metrics = Metrics()
        self.port: int | None = None

    async def run(self) -> None:
        """Runs until canceled.

        Raises:
            KubeError: The cluster refuses a required request.
            EvidenceLost: The persistent state cannot be read.
        """
        settings = self._settings
        LOG.info("using POD_LOG_TYPE = %s", settings.log_type)
        if settings.loki is None:
            LOG.warning(
                "LOG_ENDPOINT is not set: no logs are read; only reports of agents and conditions on Nodes count"
            )
        if settings.accept_injected:
            LOG.warning("test mode: lines that any process writes into the kernel log count as lines of the kernel")
        async with Kube(self._access) as kube, contextlib.AsyncExitStack() as stack:
            if settings.web is not None:
                self.port = await stack.enter_async_context(
                    metrics.serving(settings.web, text=self.metrics.text, alive=self._alive, ready=self._ready)
                )
                LOG.info("metrics and probes on port %d", self.port)
            if settings.dry_run:
                LOG.info("dry run: nothing is written")
                await self._lead(kube, writes=None, leading=None)
            leading = LeaderElection(kube, namespace=settings.namespace, identity=settings.identity)
            await stack.enter_async_context(leading.given_back())
            while True:
                await leading.win()
                self.metrics.set("health_leader", 1)
                try:
                    await self._lead(kube, writes=kube, leading=leading)
                except* LeadershipLost:
                    LOG.warning("this controller is no longer the leader; it waits for the lease")
                finally:
                    self.metrics.set("health_leader", 0)
                    self._loop = None

    async def _lead(self, kube: Kube, *, writes: Kube | None, leading: LeaderElection | None) -> None:
        settings = self._settings
        state = StateMap(writes, namespace=settings.namespace, holder=settings.identity)
        await until_done(state.load)
        self._book = book = NodeCache()
        teller = Notifier(writes, audit=self._audit)
        sure = _always if leading is None else leading.sure
        plan_writer = PlanWriter(writes, book=book, sure=sure, teller=teller, metrics=self.metrics)
        self._loop = loop = Loop(
            book=book,
            plan_writer=plan_writer,
            state=state,
            config=self._config,
            settings=settings,
            teller=teller,
            metrics=self.metrics,
        )
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            self._sources = await open_sources(stack, settings, book=book, state=state, loop=loop, metrics=self.metrics)
            for source in self._sources:
                group.create_task(_when_complete(book, source.run))
            group.create_task(watch_nodes(kube, loop))
            group.create_task(watch_switches(kube, loop, namespace=settings.namespace))
            group.create_task(self._reload(loop))
            group.create_task(self._numbers(kube))
            exporters = ExporterSource(
                kube, book=book, config=self._config, state=state, give=loop.give, metrics=self.metrics
            )
            group.create_task(exporters.run())
            group.create_task(loop.run())
            if writes is not None:
                occupied = NodeOccupancy(kube, book=book, loop=loop, namespace=settings.namespace)
                group.create_task(occupied.run())
                remediation = Remediation(
                    writes,
                    book=book,
                    loop=loop,
                    config=self._config,
                    occupied=occupied,
                    namespace=settings.namespace,
                )
                group.create_task(remediation.run())
            if leading is not None:
                checks = Validator(kube, book=book, loop=loop, config=self._config, namespace=settings.namespace)
                group.create_task(checks.run())
                await leading.keep()
                raise LeadershipLost

    async def _reload(self, loop: Loop) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            if self._config.reload():
                LOG.info("the settings of the file are active")
                if self._config.config.policy.dry_run and not self._settings.dry_run:
                    LOG.warning(
                        "dry_run in the file: taints no longer change; restart this controller to stop all writes"
                    )
                loop.settings_changed()
            problem = self._config.problem
            if problem != self._logged_problem:
                self._logged_problem = problem
                if problem is not None:
                    LOG.warning("%s", problem)
            self.metrics.set("health_config_bad", float(problem is not None))

    async def _numbers(self, kube: Kube) -> None:
        while True:
            for source in self._sources:
                self.metrics.set("health_source_blind_seconds", source.blind_s, source=source.name)
            self.metrics.set("health_requests_total", kube.counters.requests)
            await asyncio.sleep(_NUMBERS_S)

    def _alive(self) -> bool:
        since = None if self._loop is None else self._loop.turning_since
        return since is None or time.monotonic() - since < HANGS_S

    def _ready(self) -> bool:
        return self._loop is None or (self._book is not None and self._book.complete)


async def _when_complete(book: NodeCache, run: Callable[[], Awaitable[None]]) -> None:
    """Starts after all Nodes are cached: the boot is part of a line's identity."""
    await book.until_complete()
    await run()


async def _always() -> bool:
    return True
