"""A controller from its start to its end: waits for the lease, runs sources and loop, and lets go of the lease.

When the lease is lost everything stops at once and it waits for the lease again; what it had not written is decided anew by whoever leads, from the Nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from rankfall.health.config import ConfigFile, load_config
from rankfall.health.controller import web
from rankfall.health.controller.care import Care
from rankfall.health.controller.desk import Desk, LeaseGone
from rankfall.health.controller.from_exporters import ExporterSource
from rankfall.health.controller.from_loki import LokiSource
from rankfall.health.controller.leading import Leading
from rankfall.health.controller.loki_sources import open_sources
from rankfall.health.controller.loop import Loop
from rankfall.health.controller.metrics import Metrics
from rankfall.health.controller.nodebook import NodeBook
from rankfall.health.controller.occupied import Occupied
from rankfall.health.controller.patience import until_done
from rankfall.health.controller.settings import Settings
from rankfall.health.controller.state import StateMap
from rankfall.health.controller.telling import LOG, Teller
from rankfall.health.controller.validating import Validator
from rankfall.health.controller.watches import watch_nodes, watch_switches
from rankfall.kube.access import Access
from rankfall.kube.client import Kube

#: Between two looks at the file of settings, seconds.
RELOAD_S: Final = 2.0
#: A turn that lasts longer is one that hangs, seconds.
HANGS_S: Final = 300.0
#: Between two looks at what only others count, seconds.
_NUMBERS_S: Final = 2.0


class Controller:
    """One process.

    Args:
        settings: of flags and environment.
        access: the cluster.
        config: file with policy and rules; None = the defaults.
        audit: takes lines of the audit trail.

    Attributes:
        metrics: its numbers.
        port: of metrics and probes, once they are served.

    Raises:
        SpecError: the file is not usable: at its start a controller refuses it.
    """

    def __init__(
        self, settings: Settings, *, access: Access, config: Path | None, audit: Callable[[str], None]
    ) -> None:
        load_config(config)
        self._config = ConfigFile(config)
        self._config.reload()
        # Of flag or file: one that began as a dry run stays one, for it has neither lease nor state.
        dry_run = settings.dry_run or self._config.config.policy.dry_run
        self._settings = msgspec.structs.replace(settings, dry_run=dry_run)
        self._access = access
        self._audit = audit
        self._loop: Loop | None = None
        self._book: NodeBook | None = None
        self._sources: list[LokiSource] = []
        self._told_problem: str | None = None
        self.metrics = Metrics()
        self.port: int | None = None

    async def run(self) -> None:
        """Control until this is cancelled.

        Raises:
            KubeError: the cluster refuses what a controller needs.
            EvidenceLost: its state cannot be read.
        """
        settings = self._settings
        LOG.info("using POD_LOG_TYPE = %s", settings.log_type)
        if settings.loki is None:
            LOG.warning(
                "LOG_ENDPOINT is not set: no logs are read; only what agents and conditions tell on Nodes counts"
            )
        if settings.accept_injected:
            LOG.warning("test mode: what any process writes into the kernel's log counts as the kernel's own")
        async with Kube(self._access) as kube, contextlib.AsyncExitStack() as stack:
            if settings.web is not None:
                self.port = await stack.enter_async_context(
                    web.serving(settings.web, metrics=self.metrics, alive=self._alive, ready=self._ready)
                )
                LOG.info("metrics and probes on port %d", self.port)
            if settings.dry_run:
                LOG.info("dry run: nothing is written")
                await self._lead(kube, writes=None, leading=None)
            leading = Leading(kube, namespace=settings.namespace, identity=settings.identity)
            await stack.enter_async_context(leading.given_back())
            while True:
                await leading.win()
                self.metrics.set("health_leader", 1)
                try:
                    await self._lead(kube, writes=kube, leading=leading)
                except* LeaseGone:
                    LOG.warning("this controller leads no more; it waits for its turn")
                finally:
                    self.metrics.set("health_leader", 0)
                    self._loop = None

    async def _lead(self, kube: Kube, *, writes: Kube | None, leading: Leading | None) -> None:
        settings = self._settings
        state = StateMap(writes, namespace=settings.namespace, holder=settings.identity)
        await until_done(state.load)
        self._book = book = NodeBook()
        teller = Teller(writes, audit=self._audit)
        sure = _always if leading is None else leading.sure
        desk = Desk(writes, book=book, sure=sure, teller=teller, metrics=self.metrics)
        self._loop = loop = Loop(
            book=book,
            desk=desk,
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
                occupied = Occupied(kube, book=book, loop=loop, namespace=settings.namespace)
                group.create_task(occupied.run())
                care = Care(
                    writes,
                    book=book,
                    loop=loop,
                    config=self._config,
                    occupied=occupied,
                    namespace=settings.namespace,
                )
                group.create_task(care.run())
            if leading is not None:
                checks = Validator(kube, book=book, loop=loop, config=self._config, namespace=settings.namespace)
                group.create_task(checks.run())
                await leading.keep()
                raise LeaseGone

    async def _reload(self, loop: Loop) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            if self._config.reload():
                LOG.info("the settings of the file are in force")
                if self._config.config.policy.dry_run and not self._settings.dry_run:
                    LOG.warning(
                        "dry_run in the file: no taint changes any more; to write nothing at all, start this controller again"
                    )
                loop.settings_changed()
            problem = self._config.problem
            if problem != self._told_problem:
                self._told_problem = problem
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


async def _when_complete(book: NodeBook, run: Callable[[], Awaitable[None]]) -> None:
    """Begin once all Nodes are seen: a line is known by the boot that its Node shows, and without it the same line would be another one."""
    await book.until_complete()
    await run()


async def _always() -> bool:
    return True
