"""A real Loki as one process: what a cluster's log collector has pushed can be asked for after the pods are gone."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from testbed import builds, process
from testbed.answers import answers
from testbed.bed import Bed
from testbed.errors import TestbedError

_PORT, _INNER_PORT = 3100, 9096
_READY_S = 90.0


@contextmanager
def run(bed: Bed) -> Iterator[str]:
    """Its URL, once it takes and answers; reached from this machine and from pods. It starts empty, and its data goes with it.

    Raises:
        StartError: it did not become ready.
        TestbedError: one runs already.
    """
    if process.find(bed.layout, "loki"):
        raise TestbedError("this bed has a Loki already", hint="use its URL, or end it first")
    binary = builds.ensure(["loki"], say=bed.say)["loki"]
    address = str(bed.layout.control_address)
    folder = bed.layout.folder / "loki"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = folder / "loki.yaml"
    config.write_text(yaml.safe_dump(_config(folder, address)))
    try:
        _start(bed, binary)
        yield f"http://{address}:{_PORT}"
    finally:
        # Nobody wants its data, which an orderly end would write out first.
        process.stop(bed.layout, "loki", patience_s=1.0)
        shutil.rmtree(folder, ignore_errors=True)


def restart(bed: Bed) -> None:
    """End the one that runs in an orderly way, so that it writes out what it was given, and start it again with that.

    Raises:
        StartError: it did not become ready.
    """
    process.stop(bed.layout, "loki", patience_s=_READY_S)
    _start(bed, builds.ensure(["loki"], say=bed.say)["loki"])


def _start(bed: Bed, binary: Path) -> None:
    address = str(bed.layout.control_address)
    config = bed.layout.folder / "loki" / "loki.yaml"
    daemon = process.start(
        bed.layout,
        "loki",
        [str(binary), f"-config.file={config}", "-target=all"],
        namespace=bed.layout.control_namespace,
    )
    process.await_ready(daemon, lambda: answers(address, _PORT, "/ready"), limit_s=_READY_S)


@contextmanager
def alone(folder: Path, *, say: Callable[[str], None], tenants: bool = False, **limits: Any) -> Iterator[str]:
    """The URL of a Loki of this machine, which needs no bed.

    Args:
        folder: for its files; made when missing.
        say: takes lines of progress.
        tenants: each request must name one (``X-Scope-OrgID``), and sees nothing of the others.
        limits: of its ``limits_config``.

    Raises:
        TestbedError: it did not become ready.
    """
    binary = builds.ensure(["loki"], say=say)["loki"]
    folder.mkdir(parents=True, exist_ok=True)
    with _free_port() as port, _free_port() as inner:
        ports = (port, inner)
    config = folder / "loki.yaml"
    config.write_text(yaml.safe_dump(_config(folder, "127.0.0.1", ports=ports, limits=limits, tenants=tenants)))
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen([str(binary), f"-config.file={config}", "-target=all"], stdout=log, stderr=log)
        try:
            ready = process.poll(
                lambda: daemon.poll() is not None or answers("127.0.0.1", ports[0], "/ready"), limit_s=_READY_S
            )
            if not ready or daemon.poll() is not None:
                raise TestbedError(f"Loki did not become ready: {process.tail(folder / 'log')}")
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            daemon.kill()
            daemon.wait()


@contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def _config(
    folder: Path,
    address: str,
    *,
    ports: tuple[int, int] = (_PORT, _INNER_PORT),
    limits: dict[str, Any] | None = None,
    tenants: bool = False,
) -> dict[str, Any]:
    return {
        "auth_enabled": tenants,
        "server": {
            "http_listen_address": address,
            "http_listen_port": ports[0],
            "grpc_listen_address": "127.0.0.1",
            "grpc_listen_port": ports[1],
            "log_level": "warn",
        },
        "common": {
            "instance_addr": "127.0.0.1",
            "path_prefix": str(folder),
            "replication_factor": 1,
            "ring": {"kvstore": {"store": "inmemory"}},
            "storage": {
                "filesystem": {"chunks_directory": str(folder / "chunks"), "rules_directory": str(folder / "rules")}
            },
        },
        "schema_config": {
            "configs": [
                {
                    "from": "2020-01-01",
                    "store": "tsdb",
                    "object_store": "filesystem",
                    "schema": "v13",
                    "index": {"prefix": "index_", "period": "24h"},
                }
            ]
        },
        "ingester": {
            # Ready when it is: by default it lets 15 s pass first, for clusters of many.
            "lifecycler": {"min_ready_duration": "0s", "final_sleep": "0s"},
            "wal": {"enabled": False},
            # Without limit: all is still in memory, lines of a shifted clock too.
            "query_store_max_look_back_period": "-1ns",
        },
        "limits_config": {
            "reject_old_samples": False,
            "ingestion_rate_mb": 64,
            "ingestion_burst_size_mb": 128,
            **(limits or {}),
        },
        "analytics": {"reporting_enabled": False},
    }
