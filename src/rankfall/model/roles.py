"""Several roles in one job (workers, parameter servers, an evaluator): what each has of its own.

A job without ``roles`` is a job of one role, and a job of several is numbered through: slots in the order of the roles, so that a slot's
number stays one key everywhere. Nobody but ``spec.Part`` looks at both forms. All roles but those with launcher ``exec`` make one world of
ranks; ``exec`` is outside of it, because nothing is known of what such a command starts.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rankfall.model.kubernetes_spec import Resources
from rankfall.model.policies import Positive
from rankfall.model.secrets import concealed

LauncherName = Literal["auto", "torchrun", "plain", "exec"]
RestartScope = Literal["gang", "replica"]


class RoleKubernetes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a role's pods have of their own, over the job's section ``kubernetes``.

    Attributes:
        image, resources, tolerations: in place of the job's; null = the job's.
        node_selector: over the job's, key by key.
        pod: merged after the job's ``pod``, in the same way.
    """

    image: str | None = None
    resources: Resources | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] | None = None
    pod: dict[str, Any] = {}


class Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One role of a job of several; what is left out is the job's.

    Attributes:
        name: lower-case letters, digits and dashes; stands in names of pods and folders.
        nnodes: its slots.
        nproc_per_node: ranks per slot.
        command, module: as the job's; ``module`` belongs to the role's own command.
        launcher: as the job's. With ``exec`` the role is outside the world of ranks.
        env: variables over the job's.
        restart_scope: as the job's. A role of scope ``gang`` that falls ends the attempt; one of scope ``replica`` leaves the others alone.
        kubernetes: its pods.
    """

    name: str
    nnodes: Positive = 1
    nproc_per_node: Positive | None = None
    command: tuple[str, ...] | None = None
    module: bool = False
    launcher: LauncherName | None = None
    env: dict[str, str] = {}
    restart_scope: RestartScope | None = None
    kubernetes: RoleKubernetes = RoleKubernetes()

    def __repr__(self) -> str:
        return msgspec.Struct.__repr__(concealed(self))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(msgspec.structs.asdict(concealed(self)).items())
