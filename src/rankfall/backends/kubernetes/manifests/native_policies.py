"""Compiles rules, budgets and success of unattended jobs into Kubernetes policies.

Kubernetes sees only exit codes and pod conditions, so the wrapper exits with 200-219 for certain causes.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

import msgspec

from rankfall.backends.kubernetes.manifests.pod_overrides import Object
from rankfall.backends.kubernetes.manifests.refusals import POD_FAILURE_POLICY_SINCE, SUCCESS_POLICY_SINCE, Problem
from rankfall.backends.kubernetes.manifests.request import Request
from rankfall.backends.plan import Rendezvous
from rankfall.model import FailureRule, catalogue
from rankfall.model.exit_codes import CAUSE_CODES, MAX_CODE, USER_RETRYABLE, exit_class
from rankfall.model.jobspec.check_rules import MAX_RULES, USER_BUDGET

# Others use their family's code.
_GROUPS: Final = MappingProxyType(
    {
        "import_error": "import_error",
        "retryable_exception": "user_retryable",
        "segfault": "native_crash",
        "native_abort": "native_crash",
        "entrypoint_missing": "startup",
        "command_not_found": "startup",
        "permission_denied": "startup",
        "gpu_oom": "gpu_oom",
        "gpu_oom_foreign": "gpu_oom",
        "peer_lost": "peer",
        "disk_full": "disk_full",
        "preempted": "preempted",
        "cancelled": "cancelled",
        "rank_stuck": "hang",
        "killed_unknown": "killed",
    }
)
# Causes certain to the wrapper.
_SURE_GROUPS: Final = (
    *("user", "import_error", "user_retryable", "memory", "gpu_oom", "disk_full", "native_crash", "killed", "startup"),
)
SURE: Final = frozenset(CAUSE_CODES[group] for group in _SURE_GROUPS)
# Codes of these signals, and the wrapper's.
STANDARD_CODES: Final = (
    (frozenset({128 + 9}), CAUSE_CODES["killed"]),
    (frozenset({USER_RETRYABLE}), CAUSE_CODES["user_retryable"]),
    (frozenset({128 + 4, 128 + 7, 128 + 8, 128 + 11}), CAUSE_CODES["native_crash"]),
)


def code_of(slug: str) -> int:
    """Exit code 200-219 for this cause."""
    return CAUSE_CODES[_GROUPS.get(slug) or catalogue()[slug].family]


def slugs_of(cause: str) -> frozenset[str]:
    """Causes that belong to a slug or a family."""
    return frozenset(slug for slug, info in catalogue().items() if cause in {slug, info.family})


MOST_CONDITIONS: Final = 20
_SUPERVISED: Final = "leave unattended out"


class Native(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled policies and problems.

    Attributes:
        rules: Rules of the pod failure policy, ordered.
        free: True if some restarts do not count against the budget (JobSet).
        success: Success policy; None = all slots.
        problems: Settings without a native equivalent.
        notes: Notes for users.
    """

    rules: tuple[Object, ...] = ()
    free: bool = False
    success: Object | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def native(request: Request, *, container: str, rdzv: Rendezvous) -> Native:
    """Returns the native policies; only a static ``rdzv`` fixes rank 0 to slot 0.

    ``container`` restricts exit codes, which any sidecar's could match.
    """
    compiler = _Compiler(request, container)
    compiler.rules()
    compiler.budgets()
    compiler.defaults()
    success = compiler.success(rdzv)
    compiler.check()
    return Native(
        rules=tuple(compiler.made),
        free=compiler.free,
        success=success,
        problems=tuple(compiler.problems),
        notes=tuple(compiler.notes),
    )


class _Compiler:
    def __init__(self, request: Request, container: str) -> None:
        self.request = request
        self.spec = request.spec
        self.container = container
        self.made: list[Object] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.fails = False
        self.free = False

    def problem(self, path: str, why: str, instead: str, *, needs: str | None = None) -> None:
        self.problems.append(Problem(path=path, why=why, needs=needs, instead=instead))

    def rules(self) -> None:
        for number, rule in enumerate(self.spec.rules):
            path = f"$.rules[{number}]"
            if rule.roles and self.request.part.name not in rule.roles:
                continue
            if rule.action == "restart_elsewhere" or rule.exclude_node:
                self.problem(
                    path, "only a supervisor can restart the job on another node than the failed one", _SUPERVISED
                )
            elif rule.reasons:
                self.problem(f"{path}.reasons", "Kubernetes cannot match the reason of a container", _SUPERVISED)
            elif rule.conditions:
                self._by_condition(rule, path)
            else:
                codes = self._codes(rule, path)
                if codes:
                    self._by_code(rule, path, codes)

    def _by_condition(self, rule: FailureRule, path: str) -> None:
        if rule.exit_codes or rule.signals or rule.causes:
            self.problem(path, "a native rule matches either exit codes or conditions, not both", "write two rules")
            return
        match: Object = {"onPodConditions": [{"type": name, "status": "True"} for name in rule.conditions]}
        if len(rule.conditions) > MOST_CONDITIONS:
            self.problem(
                f"{path}.conditions", f"a native rule has at most {MOST_CONDITIONS} conditions", "write two rules"
            )
        elif rule.action == "ignore":
            self.free = True
            action = "FailJob" if self._set else "Ignore"
            self.made.append({"action": action, **match})
            self.notes.append(
                f"{path}: Kubernetes does not count these restarts, so budget {rule.budget!r} has no effect"
            )
        else:
            self._act(rule, path, match)

    def _by_code(self, rule: FailureRule, path: str, codes: Iterable[int]) -> None:
        if rule.action == "ignore":
            self.problem(
                f"{path}.action",
                "a failure that counts nowhere would be restarted without end",
                f"use action: restart; {_SUPERVISED}",
            )
            return
        self._act(rule, path, _on_codes(self.container, codes))

    def _act(self, rule: FailureRule, path: str, match: Object) -> None:
        left = self.spec.policies.budgets.get(rule.budget) if rule.budget is not None else None
        if rule.action == "fail" or left == 0:
            self.fails = True
            self.made.append({"action": "FailJob", **match})
            return
        if left is not None and left < self.spec.policies.max_restarts:
            self._one_number(f"{path}.budget", rule.budget or "")
            return
        self.made.append({"action": "Count", **match})

    def _codes(self, rule: FailureRule, path: str) -> list[int]:
        signals = {128 + number for number in rule.signals}
        if rule.causes:
            if rule.exit_codes or signals:
                self.problem(path, "a native rule sees one code: a cause's or the command's own", "write two rules")
                return []
            return self._cause_codes(rule.causes, f"{path}.causes")
        if not rule.exit_codes and not signals:
            return list(range(1, MAX_CODE + 1))
        codes = set(rule.exit_codes) or signals
        if rule.exit_codes and signals:
            codes &= signals
        if not codes:
            self.problem(path, "no code is in both exit_codes and signals", "write two rules")
        return self._with_standard(codes, path)

    def _with_standard(self, codes: set[int], path: str) -> list[int]:
        covered = set(codes)
        for bare, cause in () if self.spec.inside == "off" else STANDARD_CODES:
            if bare <= codes:
                covered.add(cause)
            elif bare & codes:
                self.problem(
                    path,
                    f"Kubernetes sees one code, {cause}, for ends by any of the signals {sorted(code - 128 for code in bare)}",
                    f"name all of their codes ({', '.join(map(str, sorted(bare)))}), or set inside: off",
                )
        return sorted(covered)

    def _cause_codes(self, causes: Iterable[str], path: str) -> list[int]:
        if self.spec.inside == "off":
            self.problem(
                path, "with inside: off, no code of Rankfall in the pod finds causes", "use inside: auto, or exit_codes"
            )
            return []
        meant = {slug for cause in causes for slug in slugs_of(cause)}
        codes = {code_of(slug) for slug in meant}
        others = sorted(slug for slug in catalogue() if code_of(slug) in codes and slug not in meant)
        names = ", ".join(causes)
        if others:
            self.problem(
                path,
                f"Kubernetes sees the same code for {names} and for {others[0]}",
                "name their whole family, or leave unattended out",
            )
            return []
        if not codes & SURE:
            self.problem(path, f"no code inside a pod can prove {names}", _SUPERVISED)
            return []
        return sorted(codes)

    def budgets(self) -> None:
        """Compiles budgets that no rule uses; they are irrelevant without restarts."""
        if not self.request.native_restarts:
            return
        drawn = {rule.budget for rule in self.spec.rules}
        for name, left in self.spec.policies.budgets.items():
            if name in drawn:
                continue
            path = f"$.policies.budgets.{name}"
            if left == 0:
                codes = self._cause_codes((name,), path)
                if codes:
                    if name == USER_BUDGET:
                        codes.append(USER_RETRYABLE)
                    self.fails = True
                    self.made.append({"action": "FailJob", **_on_codes(self.container, codes)})
            elif left < self.spec.policies.max_restarts:
                self._one_number(path, name)

    def _one_number(self, path: str, name: str) -> None:
        self.problem(
            path,
            f"budget {name!r} would be a second count, but Kubernetes has only one (max_restarts)",
            f"use 0 or max_restarts; {_SUPERVISED}",
        )

    def defaults(self) -> None:
        """Compiles the published permanent codes; irrelevant without restarts."""
        if not self.request.native_restarts:
            return
        if self._set and self.free:
            self.notes.append(
                "codes that are permanent by default are restarted too: a JobSet has two classes of failure"
            )
            return
        codes = [code for code in range(1, MAX_CODE + 1) if exit_class(code) == "permanent"]
        self.made.append({"action": "FailJob", **_on_codes(self.container, codes)})

    def _counted(self) -> bool:
        job, part = self.request.gang.spec, self.request.part
        if self.spec.success.policy == "rank0":
            return job.head_slot in part.slots
        return self.spec.success.role in {None, part.name}

    def success(self, rdzv: Rendezvous) -> Object | None:
        success = self.spec.success
        if success.policy == "all" or not self._counted():
            return None
        if not self.request.served.at_least(SUCCESS_POLICY_SINCE):
            self.problem(
                "$.success.policy",
                f"{success.policy} is not supported",
                _SUPERVISED,
                needs=f"Kubernetes 1.{SUCCESS_POLICY_SINCE}",
            )
        if success.policy == "rank0":
            if rdzv == "c10d":
                self.problem("$.success.policy", "with rdzv c10d rank 0 may be in any slot", "use rdzv: static")
            return {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
        return {"rules": [{"succeededCount": success.wanted(self.request.count)}]}

    def check(self) -> None:
        spec, restarts = self.spec, self.request.native_restarts
        if self._set and self.free and self.fails:
            self.problem(
                "$.rules",
                "a JobSet has two classes of failure: rules that fail exclude rules that ignore",
                _SUPERVISED,
                needs="JobSet 0.10",
            )
        if spec.backend == "job" and spec.restart_scope == "gang" and restarts:
            self.problem(
                "$.policies.max_restarts",
                "a Job cannot restart its whole gang by itself",
                "use max_restarts: 0, restart_scope: replica, backend: jobset, or leave unattended out",
            )
        if len(self.made) > MAX_RULES:
            self.problem(
                "$.rules", f"{len(self.made)} native rules are more than {MAX_RULES}", "put values into one rule"
            )
        if self.made and not self.request.served.at_least(POD_FAILURE_POLICY_SINCE):
            self.problem(
                "$.rules" if spec.rules else "$.policies.max_restarts",
                "rules by exit code or condition are not supported",
                _SUPERVISED,
                needs=f"Kubernetes 1.{POD_FAILURE_POLICY_SINCE} (beta from 1.26)",
            )

    @property
    def _set(self) -> bool:
        return self.spec.backend in {"jobset", "trainjob"}


def _on_codes(container: str, codes: Iterable[int]) -> Object:
    return {"onExitCodes": {"containerName": container, "operator": "In", "values": sorted(set(codes))}}
