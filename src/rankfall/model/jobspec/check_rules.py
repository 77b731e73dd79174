"""Checks failure rules, restart budgets, record stores and error files, independent of the backend."""

from __future__ import annotations

import re
from typing import Final

from rankfall.model.causes import catalogue
from rankfall.model.errors import SpecError
from rankfall.model.exit_codes import MAX_CODE
from rankfall.model.jobspec.job import JobSpec
from rankfall.model.jobspec.policies import FailureRule

# Limit of a Kubernetes pod failure policy, for all backends.
MAX_RULES = 20
MAX_SIGNAL = 64
# Budget with a default, for code 138 and retryable exceptions.
USER_BUDGET = "user"
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,99}")
_BUDGET = re.compile(r"[a-z0-9]([a-z0-9_-]{0,38}[a-z0-9])?")


def check_rules(spec: JobSpec) -> None:
    """Refuses impossible rules and budgets.

    Raises:
        SpecError: Names the field and allowed values.
    """
    if len(spec.rules) > MAX_RULES:
        raise SpecError(
            "$.rules", f"{len(spec.rules)} rules are more than {MAX_RULES}", hint="put values into one rule"
        )
    drawn = {rule.budget for rule in spec.rules if rule.budget}
    known = {*catalogue(), *families(), USER_BUDGET, *drawn}
    for name in spec.policies.budgets:
        if name not in known:
            raise SpecError(
                f"$.policies.budgets.{name}",
                "is neither a cause nor a family, and no rule uses it",
                hint=f"use a family: {', '.join(sorted(families()))}; or name it in a rule, as: budget: {name}",
            )
    for number, rule in enumerate(spec.rules):
        _check_match(rule, f"$.rules[{number}]", roles=[part.name for part in spec.parts])
        _check_action(rule, f"$.rules[{number}]", spec)


def families() -> frozenset[str]:
    """Returns all families of causes."""
    return frozenset(info.family for info in catalogue().values())


def _check_match(rule: FailureRule, path: str, *, roles: list[str]) -> None:
    if not any((rule.exit_codes, rule.signals, rule.causes, rule.roles, rule.reasons, rule.conditions)):
        raise SpecError(
            path,
            "has no condition",
            hint="give at least one of: exit_codes, signals, causes, roles, reasons, conditions",
        )
    for code in rule.exit_codes:
        if not 1 <= code <= MAX_CODE:
            raise SpecError(
                f"{path}.exit_codes", f"{code} is not the code of a failure; allowed: 1-{MAX_CODE} (0 is success)"
            )
    for signal in rule.signals:
        if not 1 <= signal <= MAX_SIGNAL:
            raise SpecError(f"{path}.signals", f"{signal} is not the number of a signal; allowed: 1-{MAX_SIGNAL}")
    for field, numbers in (("exit_codes", rule.exit_codes), ("signals", rule.signals)):
        ordered = sorted(set(numbers))
        if list(numbers) != ordered:
            # Kubernetes requires ascending lists without repeats.
            raise SpecError(f"{path}.{field}", "is not ascending or repeats a value", hint=f"write: {ordered}")
    for cause in rule.causes:
        if cause not in catalogue() and cause not in families():
            raise SpecError(
                f"{path}.causes",
                f"{cause!r} is neither a cause nor a family",
                hint=f"use a family: {', '.join(sorted(families()))}; or a slug that `rankfall why` names",
            )
    for one in rule.roles:
        if one not in roles:
            raise SpecError(f"{path}.roles", f"there is no role {one!r}; allowed: {', '.join(roles)}")
    for field, words in (("reasons", rule.reasons), ("conditions", rule.conditions)):
        for word in words:
            if not _WORD.fullmatch(word):
                raise SpecError(
                    f"{path}.{field}",
                    f"{word!r} is not the name of a reason or condition, as OOMKilled or DisruptionTarget",
                )


def _check_action(rule: FailureRule, path: str, spec: JobSpec) -> None:
    if rule.action == "fail":
        if rule.budget is not None:
            raise SpecError(f"{path}.budget", "is not used by action fail", hint="leave it out, or use action: restart")
        if rule.exclude_node:
            raise SpecError(
                f"{path}.exclude_node",
                "has no meaning with action fail: nothing is restarted",
                hint="use action: restart_elsewhere",
            )
        return
    if rule.budget is None:
        if rule.action == "ignore":
            raise SpecError(
                f"{path}.budget",
                "is missing: action ignore does not count in max_restarts, so the run might never end",
                hint="name a budget and give it a number in policies.budgets",
            )
        return
    if not _BUDGET.fullmatch(rule.budget):
        raise SpecError(f"{path}.budget", f"{rule.budget!r} is not a name: 1-40 lower-case letters, digits, _ and -")
    if rule.budget not in spec.policies.budgets and (rule.budget != USER_BUDGET or rule.action == "ignore"):
        raise SpecError(
            f"{path}.budget",
            f"{rule.budget!r} has no number",
            hint=f"add it, as: policies: {{budgets: {{{rule.budget}: 3}}}}",
        )


_FIELD: Final = "$.record_store"
_FILE: Final = re.compile(r"file://(/[\w.@+-]+)+/?")
_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=+-]+)*/?")
_MAX: Final = 1024
_ERROR_FILE: Final = re.compile(r"(/[\w.@+-]+)*/[\w.@+-]*\*?[\w.@+-]*\.(?:json|pb)")
# Refused stores, which get a hint.
_OTHERS: Final = ("gs://", "gcs://", "az://", "azure://", "abfs://", "abfss://", "http://", "https://")


def check_record_store(spec: JobSpec) -> None:
    """Refuses a store that slots cannot write.

    Raises:
        SpecError: The store is wrong; names allowed ones.
    """
    url = spec.record_store
    if url is None:
        return
    if url.startswith(_OTHERS):
        raise SpecError(
            _FIELD,
            f"{url.partition('://')[0]}:// is not supported: code in a slot has only Python's standard library",
            hint="use s3://BUCKET/PREFIX with AWS_ENDPOINT_URL of an S3-compatible server, or file:///DIR of a shared volume",
        )
    if len(url) > _MAX or not (_FILE.fullmatch(url) or _S3.fullmatch(url)) or "/../" in f"{url}/":
        raise SpecError(
            _FIELD,
            f"{url[:100]!r} is not a store",
            hint="allowed: file:///DIR with an absolute path, s3://BUCKET/PREFIX",
        )
    if spec.inside == "off":
        raise SpecError(
            _FIELD, "with inside: off, no code of Rankfall in the slots could write there", hint="use inside: auto"
        )
    if url.startswith("file://") and spec.backend != "local":
        path = url.removeprefix("file://").rstrip("/")
        if not any(path == seen or path.startswith(f"{seen}/") for seen in _mounted(spec)):
            raise SpecError(
                _FIELD,
                f"{path} is on no volume of the pods: its files would be lost with the pods",
                hint="name a path below one of $.kubernetes.volume_mounts or the workspace, mounted at the same path here",
            )


def check_error_file(spec: JobSpec) -> None:
    """Refuses an error file that no reader recognizes.

    Raises:
        SpecError: The path is wrong; names allowed ones.
    """
    path = spec.error_file
    if path is None:
        return
    if len(path) > _MAX or not _ERROR_FILE.fullmatch(path) or "/../" in path:
        raise SpecError(
            "$.error_file",
            f"{path[:100]!r} is not an absolute path of a .json or .pb file",
            hint="as: /out/error.json (torchelastic's form), /out/error-*.pb (Flyte's, one for each slot)",
        )
    if spec.inside == "off":
        raise SpecError("$.error_file", "with inside: off, no code of Rankfall in the slots could write it")


def _mounted(spec: JobSpec) -> list[str]:
    found = [str(mount.get("mountPath", "")).rstrip("/") for mount in spec.kubernetes.volume_mounts]
    if spec.kubernetes.workspace is not None:
        found.append(spec.kubernetes.workspace.path.rstrip("/"))
    return [path for path in found if path]
