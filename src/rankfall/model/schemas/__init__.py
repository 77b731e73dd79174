"""JSON schemas of the public documents, generated from the structs by ``python -m rankfall.model.schemas``.

A test compares the files with the structs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rankfall.model import decoding
from rankfall.model.jobspec.job import JobSpec
from rankfall.model.node_health.kernel_reports import KernelLine, KernelReport
from rankfall.model.node_health.nodes_document import NodesDocument
from rankfall.model.node_health.records import NodeFault, NodeHealth
from rankfall.model.node_health.run_verdicts import RunVerdicts
from rankfall.model.record import Record
from rankfall.model.run_status import RunsDocument, StatusDocument
from rankfall.model.verdict import Verdict

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "rankfall.job-1": JobSpec,
    "rankfall.kernelline-1": KernelLine,
    "rankfall.kernelreport-1": KernelReport,
    "rankfall.nodefault-1": NodeFault,
    "rankfall.nodehealth-1": NodeHealth,
    "rankfall.nodes-1": NodesDocument,
    "rankfall.record-1": Record,
    "rankfall.runs-1": RunsDocument,
    "rankfall.runverdicts-1": RunVerdicts,
    "rankfall.status-1": StatusDocument,
    "rankfall.verdict-1": Verdict,
}
#: Fields of printed documents that are there only where they say something.
OPTIONAL = frozenset({"phase", "independent"})


def schema_of(name: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a document, by its file name without ending.

    Printed documents leave no field out (but ``OPTIONAL`` ones), so every field of them is required; in what people and recorders write (job, record)
    only the fields without a default are.
    """
    schema = msgspec.json.schema(DOCUMENTS[name])
    if name.split(".")[1].split("-", maxsplit=1)[0] in {"nodes", "runs", "status", "verdict"}:
        for part in schema.get("$defs", {}).values():
            if "properties" in part:
                part["required"] = [field for field in part["properties"] if field not in OPTIONAL]
    plain: dict[str, Any] = decoding.decode(msgspec.json.encode(schema))  # tuples of defaults become lists
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name.replace("-", "/"), **plain}
