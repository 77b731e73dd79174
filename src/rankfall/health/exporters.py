"""Where metrics of GPUs are: rows of an operator's file. The node comes from the exporter's pod, or from the operator, and never from what an exporter says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from rankfall.model import decoding
from rankfall.model.errors import SpecError
from rankfall.model.health import shown
from rankfall.model.http_address import is_http

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$(?!\n)")]


class Exporter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: an address with its node, or the pods of a DaemonSet.

    Attributes:
        node, url: of one exporter.
        namespace, pods: of pods that a DaemonSet made, by a selector of labels. Whoever may make DaemonSets there is believed.
        port, path: of these pods.
        every_s: seconds between two looks.
    """

    node: _Name | None = None
    url: str | None = None
    namespace: _Name | None = None
    pods: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)] | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 9_400
    path: Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9._/-]{0,255}$(?!\n)")] = "/metrics"
    every_s: Annotated[int, msgspec.Meta(ge=1, le=3_600)] = 30


def exporters_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Exporter, ...]:
    """The rows of an operator's file.

    Raises:
        SpecError: names file, row and field.
    """
    found = []
    for number, row in enumerate(rows, start=1):
        place = f"{origin}: metrics {number}"
        try:
            each = decoding.convert(row, Exporter)
        except msgspec.ValidationError as error:
            raise SpecError(place, shown(str(error))) from None
        one = each.node is not None and each.url is not None
        many = each.namespace is not None and each.pods is not None
        if one == many or (each.node is None) != (each.url is None) or (each.namespace is None) != (each.pods is None):
            raise SpecError(
                place,
                "needs either node and url, or namespace and pods",
                hint='namespace = "gpu-operator", pods = "app=nvidia-dcgm-exporter"',
            )
        if each.url is not None and not is_http(each.url):
            raise SpecError(f"{place}: url", "must be an http or https address")
        found.append(each)
    return tuple(found)
