"""The ConfigMap that outlives a controller: breaker, rate, Loki positions, waiting observations.

Unreadable content is refused until a person removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, ObjectNotFound
from rankfall.kube.resources import CONFIG_MAPS
from rankfall.loki.reader import State
from rankfall.model import decoding
from rankfall.model.errors import EvidenceLost
from rankfall.model.node_health.records import NodeFault, printable
from rankfall.nodes.rules.gpu_metrics import ActiveMetric
from rankfall.nodes.rules.policy import Safety

NAME: Final = "rankfall-controller-state"
SCHEMA: Final = "rankfall.controller/1"
LABELS: Final = {"app.kubernetes.io/name": "rankfall", "app.kubernetes.io/component": "controller"}
#: Lines remembered for each query.
MAX_LINES: Final = 2_000
#: Observations that wait for a boot or a repeated write.
MAX_WAITING: Final = 256
_METRICS: Final = "metrics"


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of the state that decisions need.

    Attributes:
        safety: Breaker and rate.
        reset_word: Last word that closed the breaker.
        waiting: Observations to repeat.
        reported_until: All Events until then are sent; nanoseconds since the epoch.
    """

    schema: str = SCHEMA
    safety: Safety = Safety()
    reset_word: str = ""
    waiting: tuple[NodeFault, ...] = ()
    reported_until: int = msgspec.field(default=0, name="told_until")


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Position of one Loki query.

    ``begun``: earliest begin of each boot by ``node boot``, nanoseconds since the epoch.
    """

    cursor: State
    begun: dict[str, int] = {}


class StateMap:
    """The ConfigMap; without ``kube`` (dry run) nothing is read or written.

    Another writer's data is never overwritten.
    """

    def __init__(self, kube: Kube | None, *, namespace: str, holder: str) -> None:
        self._kube = kube
        self._holder = holder
        self._writes = asyncio.Lock()
        self._namespace = namespace
        self._version: str | None = None
        self.stored = Stored()
        self.places: dict[str, Place] = {}
        self.standing: dict[str, ActiveMetric] = {}

    async def load(self) -> None:
        """Reads the ConfigMap, or creates an empty one.

        Raises:
            EvidenceLost: Unreadable, or not Rankfall's.
            KubeError: The ConfigMap cannot be requested.
        """
        if self._kube is None:
            return
        try:
            item = await self._kube.get(CONFIG_MAPS, NAME, namespace=self._namespace)
        except ObjectNotFound:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "labels": LABELS}, "data": {}}
            item = await self._kube.create(CONFIG_MAPS, body, namespace=self._namespace)
        meta = item["metadata"]
        if any((meta.get("labels") or {}).get(key) != value for key, value in LABELS.items()):
            raise EvidenceLost(
                f"ConfigMap {NAME} in {self._namespace} is not Rankfall's", hint="give --namespace another one"
            )
        self._version = str(meta["resourceVersion"])
        self.stored, self.places, self.standing = _read(item.get("data") or {}, namespace=self._namespace)

    async def keep(self, stored: Stored) -> None:
        """Writes the part that decisions need, if it changed.

        Raises:
            Conflict: Another controller wrote the ConfigMap since.
            KubeError: The ConfigMap cannot be written.
        """
        if stored != self.stored:
            await self._write({"state": msgspec.json.encode(stored).decode()})
            self.stored = stored

    async def save_position(self, name: str, place: Place) -> None:
        """Writes the position of one query.

        Raises:
            Conflict, KubeError: As :meth:`keep`.
        """
        seen = place.cursor.seen[-MAX_LINES:]
        short = msgspec.structs.replace(place, cursor=msgspec.structs.replace(place.cursor, seen=seen))
        await self._write({f"query.{name}": msgspec.json.encode(short).decode()})
        self.places[name] = place

    async def save_active_metrics(self, standing: dict[str, ActiveMetric]) -> None:
        """Writes the active metrics if they changed.

        Raises:
            Conflict, KubeError: As :meth:`keep`.
        """
        if standing != self.standing:
            await self._write({_METRICS: msgspec.json.encode(standing).decode()})
            self.standing = standing

    async def _write(self, data: Mapping[str, str]) -> None:
        if self._kube is None:
            return
        async with self._writes:
            try:
                await self._patch(self._kube, data)
            except Conflict:
                # The response to this process's own write may be lost.
                item = await self._kube.get(CONFIG_MAPS, NAME, namespace=self._namespace)
                if (item.get("data") or {}).get("holder") != self._holder:
                    raise
                self._version = str(item["metadata"]["resourceVersion"])
                await self._patch(self._kube, data)

    async def _patch(self, kube: Kube, data: Mapping[str, str]) -> None:
        body = {"data": {**data, "holder": self._holder}}
        item = await kube.patch(
            CONFIG_MAPS, NAME, body, kind="merge", namespace=self._namespace, resource_version=self._version
        )
        self._version = str(item["metadata"]["resourceVersion"])


def _read(data: Mapping[str, Any], *, namespace: str) -> tuple[Stored, dict[str, Place], dict[str, ActiveMetric]]:
    stored, places, standing = Stored(), dict[str, Place](), dict[str, ActiveMetric]()
    for key, text in data.items():
        try:
            if key == "state":
                stored = decoding.decode(text, kind=Stored)
            elif key == _METRICS:
                standing = decoding.decode(text, kind=dict[str, ActiveMetric])
            elif key.startswith("query."):
                places[key.removeprefix("query.")] = decoding.decode(text, kind=Place)
        except msgspec.DecodeError as error:
            raise EvidenceLost(
                f"ConfigMap {NAME} in {namespace}: {printable(key, 64)}: {printable(str(error))}",
                hint=f"check whether its breaker is open, then run: kubectl -n {namespace} delete configmap {NAME}",
            ) from None
    if stored.schema != SCHEMA:
        raise EvidenceLost(
            f"ConfigMap {NAME} in {namespace} is of schema {printable(stored.schema, 64)}",
            hint="run the version that wrote it, or delete it to start with an empty state",
        )
    return stored, places, standing
