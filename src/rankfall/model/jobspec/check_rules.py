"""Checks failure rules, restart budgets, record stores, error files and notifications, independent of the backend."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from rankfall.model.causes import catalogue
from rankfall.model.errors import SpecError
from rankfall.model.exit_codes import MAX_CODE
from rankfall.model.jobspec.job import JobSpec
from rankfall.model.jobspec.policies import FailureRule, Notify, NotifyTarget

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
    if url.startswith("file://") and not spec.writes_run_dir:
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


_MAX_TARGETS: Final = 8
# Of a webhook and of a link.
_MAX_URL: Final = 2048
_URL: Final = re.compile(r"https?://[!-~]+")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9][\w.+=-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,250})?", re.ASCII)
LINK_FIELDS: Final = ("run", "name", "attempt", "rank", "node")
_FIELD_IN_LINK: Final = re.compile(r"[{]([^{}]*)[}]")


def check_notify(spec: JobSpec) -> None:
    """Refuses receivers that no message could reach; no message has a webhook's URL.

    Raises:
        SpecError: Names the field and allowed values.
    """
    notify = spec.notify
    if not notify.targets:
        return
    if spec.unattended:
        raise SpecError(
            "$.notify",
            "does not work with unattended: the run has no supervisor that could send messages",
            hint="leave unattended out, or write: notify: {targets: []}",
        )
    if len(notify.targets) > _MAX_TARGETS:
        raise SpecError("$.notify.targets", f"{len(notify.targets)} are more than {_MAX_TARGETS}")
    if not notify.events:
        raise SpecError("$.notify.events", "is empty", hint="as: events: [failure, end]; or leave it out")
    for number, target in enumerate(notify.targets):
        _check_target(target, f"$.notify.targets[{number}]")
    _check_link(notify)


def _check_target(target: NotifyTarget, path: str) -> None:
    kinds = [name for name in ("webhook", "email", "command") if getattr(target, name)]
    if len(kinds) != 1:
        found = f"has {' and '.join(kinds)}" if kinds else "has no receiver"
        raise SpecError(path, found, hint="give exactly one of: webhook, email, command")
    if target.webhook and not _is_url(target.webhook):
        raise SpecError(
            f"{path}.webhook", "is not a URL", hint="as: https://HOST/PATH, of visible ASCII, at most 2048 characters"
        )
    if target.email and not _ADDRESS.fullmatch(target.email):
        raise SpecError(f"{path}.email", f"{target.email[:100]!r} is not an address", hint="as: team@example.org")
    if target.command and (not target.command[0] or any("\0" in word for word in target.command)):
        raise SpecError(f"{path}.command", "has no program or holds a NUL byte")


def _check_link(notify: Notify) -> None:
    if notify.link is None:
        return
    for name in _FIELD_IN_LINK.findall(notify.link):
        if name not in LINK_FIELDS:
            allowed = ", ".join(f"{{{one}}}" for one in LINK_FIELDS)
            raise SpecError("$.notify.link", f"{{{name[:60]}}} is no field of a link", hint=f"allowed: {allowed}")
    if not _is_url(_FIELD_IN_LINK.sub("x", notify.link)):
        raise SpecError("$.notify.link", "is not a URL", hint="as: https://HOST/PATH?run={run}")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return len(text) <= _MAX_URL and bool(_URL.fullmatch(text)) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
