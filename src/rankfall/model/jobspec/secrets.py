"""Finds secret values of a job and masks them in output and storage; prefers over-masking.

A name or a shape (service token, password in a URL, private key) marks a secret. Run directories store
:func:`concealed` jobs, with ``***``, and the values apart by JSON pointer. Plans hold references: shown text, NUL byte
(impossible in arguments), pointer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")
# JobSpec or role; both import this module.
Job = TypeVar("Job", bound=msgspec.Struct)

MASK: Final = "***"
# Parts of names, as "PGPASSWORD" or "authToken", but not "tokenizer", "max-tokens", "author".
_NAME: Final = re.compile(
    r"(?i)pass(?:word|wd|phrase)|secret|credential|cookie|private|signature|api[_.-]?key|access[_.-]?key|auth(?!or(?!i[sz]))|"
    r"token(?!i[sz]|s(?![a-z]))|session[_.-]?(?:key|id|token)|(?:^|[_.-])(?:pwd|pass|pat|dsn|bearer|pin)(?:$|[_.-])|[a-z0-9][_.-]key$"
)
# Such names hold a path of a secret.
_PLACE: Final = re.compile(r"(?i)[_.-](?:file|path|dir|folder)$")
# Only under such names a number may be secret.
_NUMBER_COUNTS: Final = re.compile(r"(?i)pass|pwd|pin|secret")
_NUMBER: Final = re.compile(r"[+-]?\d{1,6}(?:\.\d{1,6})?")
_SETTINGS: Final = frozenset(
    {"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default"}
)
_IN_URL: Final = re.compile(r"(://[^\s/:@]{0,128}):([^\s/@]{1,512})@")
_OPTION: Final = re.compile(r"(--?[\w.-]+|[A-Za-z_]\w*)=(.*)", re.DOTALL)
_SHAPE: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\b(?:gh[opsur]_\w{20}|github_pat_\w{20}|glpat-[\w-]{16}|hf_[A-Za-z0-9]{16}|xox[abeprs]-[\w-]{8})"
    r"|(?<![\w/.-])sk-(?=[\w-]{0,64}\d)[\w-]{16}"
    r"|\beyJ[\w-]{8,4096}\.[\w-]{4}"
    r"|(?i:\bbearer\s{1,4}[\w.~+/=-]{8})"
    # Assignments in connection strings or shell text, except references to variables.
    r"|(?i:(?:password|passwd|pwd|secret|accountkey|sharedaccesskey|api_key|access_key|token)=(?!['\"]?[$<{]|[\d.]{1,6}\b)[^\s;&'\"]{3}"
    r"|(?:password|passwd|pwd|secret|api_key|access_key|token)=['\"](?!\$)[^'\"]{3})"
)
# Names that only refer to a secret.
_REFERENCES: Final = frozenset({"secretName", "secretRef", "secretKeyRef", "imagePullSecrets", "serviceAccountToken"})
_BETWEEN: Final = "\0"
# The path of a webhook is its secret.
_ORIGIN: Final = re.compile(r"(https?://)(?:[^\s/@]{0,512}@)?([\w.:\[\]-]{1,255})(?:[/?#]|$)")


class Found(msgspec.Struct, frozen=True):
    """One secret: its text and its masked form."""

    text: str
    label: str

    def __repr__(self) -> str:
        return f"Found({self.label!r})"


def is_secret_name(name: str) -> bool:
    """True if such a variable or option probably holds a secret."""
    return bool(_NAME.search(name)) and not _PLACE.search(name)


def masked_value(name: str, value: str) -> str:
    """Returns a variable's value for display."""
    if is_secret_name(name) and _may_be_secret(name, value):
        return MASK
    return masked_text(value)


def masked_text(text: str) -> str:
    """Masks the password of a URL; returns ``***`` for any other secret shape."""
    text = _IN_URL.sub(rf"\1:{MASK}@", text)
    return MASK if _SHAPE.search(text) else text


def masked_url(url: str) -> str:
    """Returns scheme and host of a URL; masks all else."""
    found = _ORIGIN.match(url)
    return f"{found[1]}{found[2]}/{MASK}" if found else MASK


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """Masks secret values of variables."""
    return {name: masked_value(name, value) for name, value in env.items()}


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Masks secrets of a command: options (``--token X``, ``--token=X``), passwords in URLs, tokens."""
    masked: list[str] = []
    before = ""
    for word in words:
        option = _OPTION.fullmatch(word)
        if before and not word.startswith("-") and _may_be_secret(before, word):
            masked.append(MASK)
        elif option is not None:
            value = masked_value(option[1], option[2])
            masked.append(word if value == option[2] else f"{option[1]}={value}")
        else:
            masked.append(masked_text(word))
        before = word if word.startswith("-") and option is None and is_secret_name(word) else ""
    return tuple(masked)


def is_masked(text: str) -> bool:
    """True for a masked text, which cannot run."""
    option = text.endswith(f"={MASK}") and _OPTION.fullmatch(text)
    return (
        text == MASK or bool(option) or f":{MASK}@" in text or (text.endswith(f"/{MASK}") and text == masked_url(text))
    )


def secrets_of(spec: msgspec.Struct) -> dict[str, Found]:
    """Returns secrets by JSON pointer, from variables, commands and pod settings, masked ones included."""
    return dict(_of_job(spec, ""))


def concealed(spec: Job) -> Job:
    """Returns the job with ``***`` for every secret."""
    return replaced(spec, {pointer: found.label for pointer, found in secrets_of(spec).items()})


def referring(spec: Job) -> Job:
    """Returns the job with a reference into ``secrets.json`` (label and field path) instead of each secret value."""
    return replaced(spec, {pointer: reference(pointer, found.label) for pointer, found in secrets_of(spec).items()})


def reference(pointer: str, label: str) -> str:
    """Makes a plan's reference to a secret."""
    return f"{label}{_BETWEEN}{pointer}"


def without_pointer(text: str) -> str:
    """Returns the visible part of a plan's text."""
    return text.partition(_BETWEEN)[0]


def pointer_of(text: str) -> str | None:
    """Returns a reference's pointer, or None."""
    return text.partition(_BETWEEN)[2] or None


def replaced(value: T, texts: Mapping[str, str]) -> T:
    """Returns a copy with new texts at JSON pointers; ignores pointers to non-texts."""
    if not texts:
        return value
    above = {pointer[:at] for pointer in texts for at in range(len(pointer)) if pointer[at] == "/"}
    changed: T = _put(value, "", texts, above)
    return changed


def _put(value: Any, path: str, texts: Mapping[str, str], above: set[str]) -> Any:
    if isinstance(value, str):
        return texts.get(path, value)
    if path not in above:
        return value
    if isinstance(value, msgspec.Struct):
        fields = {name: _put(getattr(value, name), f"{path}/{name}", texts, above) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, Mapping):
        return {key: _put(inner, f"{path}/{_part(key)}", texts, above) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_put(inner, f"{path}/{number}", texts, above) for number, inner in enumerate(value))
    return value


def _of_job(job: Any, path: str) -> Iterator[tuple[str, Found]]:
    """Secrets of a spec or role; skips malformed parts, because a repr must not fail."""
    if isinstance(env := job.env, Mapping):
        for name, value in env.items():
            if isinstance(value, str):
                yield from _pair(f"{path}/env/{_part(name)}", value, masked_value(str(name), value))
    # The program is no secret.
    yield from _words(job.command, f"{path}/command", first=1)
    for field in ("pod", "volumes"):
        yield from _in_pod(getattr(job.kubernetes, field, None), f"{path}/kubernetes/{field}")
    for number, role in enumerate(getattr(job, "roles", ())):
        yield from _of_job(role, f"{path}/roles/{number}")
    for number, target in enumerate(getattr(getattr(job, "notify", None), "targets", ())):
        place = f"{path}/notify/targets/{number}"
        if isinstance(url := getattr(target, "webhook", None), str):
            yield from _pair(f"{place}/webhook", url, masked_url(url))
        yield from _words(getattr(target, "command", None), f"{place}/command", first=1)


def _words(words: Any, path: str, *, first: int = 0) -> Iterator[tuple[str, Found]]:
    if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
        for number, (word, label) in enumerate(zip(words, masked_words(words), strict=True)):
            if number >= first:
                yield from _pair(f"{path}/{number}", word, label)


def _in_pod(value: Any, path: str) -> Iterator[tuple[str, Found]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            yield from _pair(f"{path}/value", value["value"], masked_value(value["name"], value["value"]))
            return
        for key, inner in value.items():
            place = f"{path}/{_part(key)}"
            if key in {"command", "args"}:
                yield from _words(inner, place)
            elif isinstance(inner, str):
                if key not in _REFERENCES:
                    yield from _pair(place, inner, masked_value(str(key), inner))
            else:
                yield from _in_pod(inner, place)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _in_pod(inner, f"{path}/{number}")


def _pair(pointer: str, text: str, label: str) -> Iterator[tuple[str, Found]]:
    if label != text or is_masked(text):
        yield pointer, Found(text, label)


def _may_be_secret(name: str, value: str) -> bool:
    if value.strip().lower() in _SETTINGS:
        return False
    return not _NUMBER.fullmatch(value) or bool(_NUMBER_COUNTS.search(name))


def _part(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
