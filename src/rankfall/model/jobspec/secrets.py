"""Which values of a job are secret, and how a job is shown and stored without them. Prefers one value too many hidden over one secret shown.

A value is secret by the name of its variable or option, or by its own shape (a token of a known service, a password in a URL, a private key).
What a run directory stores of a job is :func:`concealed`: ``***`` in the place of each, and the values apart, by their JSON pointer in the spec.
A plan holds a reference in such a place: the shown text, a NUL byte (which no argument and no variable can hold), the pointer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")
# A JobSpec or one of its roles; both show themselves through this module, so it does not import them.
Job = TypeVar("Job", bound=msgspec.Struct)

MASK: Final = "***"
# Words of names, anywhere in them: "PGPASSWORD", "authToken". "tokenizer" and "max-tokens" are about text, "author" is a person.
_NAME: Final = re.compile(
    r"(?i)pass(?:word|wd|phrase)|secret|credential|cookie|private|signature|api[_.-]?key|access[_.-]?key|auth(?!or(?!i[sz]))|"
    r"token(?!i[sz]|s(?![a-z]))|session[_.-]?(?:key|id|token)|(?:^|[_.-])(?:pwd|pass|pat|dsn|bearer|pin)(?:$|[_.-])|[a-z0-9][_.-]key$"
)
# The name of such a one says where a secret is kept.
_PLACE: Final = re.compile(r"(?i)[_.-](?:file|path|dir|folder)$")
# A number under such a name may be the secret; under another one it is a limit or a count.
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
    # Assignments in a connection string or in the text of a shell; not one that refers to another variable.
    r"|(?i:(?:password|passwd|pwd|secret|accountkey|sharedaccesskey|api_key|access_key|token)=(?!['\"]?[$<{]|[\d.]{1,6}\b)[^\s;&'\"]{3}"
    r"|(?:password|passwd|pwd|secret|api_key|access_key|token)=['\"](?!\$)[^'\"]{3})"
)
# Names that sound secret and only say where one is kept.
_REFERENCES: Final = frozenset({"secretName", "secretRef", "secretKeyRef", "imagePullSecrets", "serviceAccountToken"})
_BETWEEN: Final = "\0"


class Found(msgspec.Struct, frozen=True):
    """One secret of a job: the text that holds it, and what is shown in its place."""

    text: str
    label: str

    def __repr__(self) -> str:
        return f"Found({self.label!r})"


def is_secret_name(name: str) -> bool:
    """Whether a variable or an option of this name probably holds a secret."""
    return bool(_NAME.search(name)) and not _PLACE.search(name)


def masked_value(name: str, value: str) -> str:
    """The value of a variable, as people may see it."""
    if is_secret_name(name) and _may_be_secret(name, value):
        return MASK
    return masked_text(value)


def masked_text(text: str) -> str:
    """A text as people may see it: without the password in a URL; ``***`` where something else in it is secret by its shape."""
    text = _IN_URL.sub(rf"\1:{MASK}@", text)
    return MASK if _SHAPE.search(text) else text


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables with secret values replaced."""
    return {name: masked_value(name, value) for name, value in env.items()}


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """The same command with secret values replaced: those of options (``--token X``, ``--token=X``), passwords in URLs, tokens by their shape."""
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
    """Whether this is what is shown in the place of a secret, and no value that anything can run with."""
    return text == MASK or (text.endswith(f"={MASK}") and bool(_OPTION.fullmatch(text))) or f":{MASK}@" in text


def secrets_of(spec: msgspec.Struct) -> dict[str, Found]:
    """The secrets of a job by their JSON pointers: of variables, commands, and of what it says of its pods. Those already masked are among them."""
    return dict(_of_job(spec, ""))


def concealed(spec: Job) -> Job:
    """The same job with ``***`` in the place of every secret."""
    return replaced(spec, {pointer: found.label for pointer, found in secrets_of(spec).items()})


def referring(spec: Job) -> Job:
    """The same job with a reference in the place of every secret; see :func:`revealed`."""
    return replaced(spec, {pointer: reference(pointer, found.label) for pointer, found in secrets_of(spec).items()})


def reference(pointer: str, label: str) -> str:
    """What stands in a plan for a secret of the spec."""
    return f"{label}{_BETWEEN}{pointer}"


def without_pointer(text: str) -> str:
    """What is shown for a text of a plan: of a reference the part before the pointer."""
    return text.partition(_BETWEEN)[0]


def pointer_of(text: str) -> str | None:
    """The pointer of a reference; None = the text is none."""
    return text.partition(_BETWEEN)[2] or None


def replaced(value: T, texts: Mapping[str, str]) -> T:
    """A copy with other texts at some JSON pointers; pointers that lead to no text are left alone."""
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
    """Of a spec or of one of its roles; whatever is not as a spec has it is passed over, because a repr must not fail."""
    if isinstance(env := job.env, Mapping):
        for name, value in env.items():
            if isinstance(value, str):
                yield from _pair(f"{path}/env/{_part(name)}", value, masked_value(str(name), value))
    # The program itself has to be found, and is no secret.
    yield from _words(job.command, f"{path}/command", first=1)
    for field in ("pod", "volumes"):
        yield from _in_pod(getattr(job.kubernetes, field, None), f"{path}/kubernetes/{field}")
    for number, role in enumerate(getattr(job, "roles", ())):
        yield from _of_job(role, f"{path}/roles/{number}")


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
