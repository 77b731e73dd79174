"""Classifies exceptions and process exits by the signature catalogue.

Cost: a fixed part of each message is read, once for each exception of a chain; nothing is cached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from re import Match
from typing import Final, Literal

import msgspec

from rankfall.evidence.readers.frames import EXPECTED, HEAD, QUOTED_HEAD
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.text import is_severe, normalise
from rankfall.model import EvidenceRole, numbers
from rankfall.model.causes import Retry
from rankfall.model.numbers import whole
from rankfall.model.patterns import anchored, bounded
from rankfall.verdict.diagnose.cause_tables import NEAREST, WEAK_PRIMARIES
from rankfall.verdict.signatures.catalogue import Catalogue
from rankfall.verdict.signatures.matcher import Hit, best

_SHARE: Final = bounded(
    r"(?P<who>[Pp]rocess \d{1,10}|this process) has (?P<number>\d{1,9}(?:\.\d{1,4})?) (?P<unit>bytes|[KMGT]iB) memory in use",
    limit=4_096,
)
_ALLOCATED: Final = bounded(
    r"Of the allocated memory (?P<number>\d{1,9}(?:\.\d{1,4})?) (?P<unit>bytes|[KMGT]iB) is allocated by PyTorch",
    limit=4_096,
)
_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST: Final = 4096


def own_process_holds_most(text: str) -> bool:
    """True if the process that ran out of GPU memory holds at least as much as all others in total.

    In a container torch does not recognize its own process among those of the GPU. That is then the smallest one that
    holds what torch has allocated. False also if the message lacks both.
    """
    own, others = 0.0, []
    for share in _SHARE.finditer(text[:_MOST]):
        if share["who"] == "this process":
            own = max(own, _bytes(share))
        else:
            others.append(_bytes(share))
    allocated = _ALLOCATED.search(text[:_MOST])
    if not own and allocated is not None and (size := _bytes(allocated)) > 0:
        own = min((one for one in others if one >= size), default=0.0)
        if own:
            others.remove(own)
    return own > 0 and own >= sum(others)


def _bytes(size: Match[str]) -> float:
    return (numbers.real(size["number"]) or 0.0) * _UNITS[size["unit"]]


# Specificity of an exception without a signature.
GENERIC = 20
# Types of exceptions about a child process.
_CHILD_ERRORS = ("ProcessExitedException",)
# Commands that run the training, in an exception about one; what only installs or builds is the program's own child.
_RUNS_TRAINING: Final = bounded(
    r"""\ACommand '\[?['"]?(?:[^\s'"]{0,512}/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|colossalai|mpi(?:run|exec)[\w.]*|orterun|prterun|horovodrun|srun|ssh|(?:ba)?sh)['" ]|\A(?:mpirun|jsrun|horovodrun) failed with exit code """,
    limit=2048,
)
_BUILDS: Final = bounded(r"\bpip\b|\bsetup\.py\b|\bninja\b|\bcmake\b|\bnvcc\b", limit=2048)
_GROUPS = ("ExceptionGroup",)
# Causes that an exception of a launcher has itself.
_OF_A_LAUNCHER: Final = frozenset(
    {
        "address_in_use",
        "bad_arguments",
        "permission_denied",
        "disk_full",
        "disk_fault",
        "shared_fs_error",
        "host_alloc_failed",
    }
)
# Exceptions that only repeat another one: with its traceback in the message, or for any reason.
_WRAPPERS = frozenset({"user_code_exception.dataloader", "hub_unreachable.hf"})
# Types of a program's own failures, which it does not expect.
_FAILURES: Final = frozenset({"ValueError", "RuntimeError", "AssertionError", "TypeError", "ZeroDivisionError"})
_RAISED: Final = bounded(r"\A([A-Za-z_][\w.]{0,200})(?:: (.*))?\Z", limit=_MOST)
_QUOTED = f"\n{QUOTED_HEAD.decode()}\n"
# How torch.distributed.checkpoint lists the exceptions of ranks: their numbers, then a traceback of each.
_OF_RANKS: Final = bounded(r"\ACheckpointException ranks:dict_keys\(\[([\d, ]{1,4000})\]\)", limit=_MOST)
_QUOTED_OF_RANK = f"\n{HEAD.decode()} (RANK "
_EXTERNAL = frozenset(
    {"KeyboardInterrupt", "torch.distributed.elastic.multiprocessing.api.SignalException", "SignalException"}
)
# The words of a name.
_HUMPS: Final = bounded(r"(?<=[a-z])[A-Z]", limit=128)
_MAX_NAME: Final = 120
# Cause of a missing file by the origin of its exception.
_NO_DATA: Final = {"command": "command_not_found", "removal": "file_race", "output": "user_code_exception"}


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """Classification of an exception with its chain.

    Attributes:
        groups: Named parts of the signature's hit.
        place: Of the exception in the chain that gives the cause.
        end: It only reports the end of another process, as a launcher's exception.
        lost_peer: Its chain contains a lost peer's exception, or that of a wait for the others.
        failed: Ranks whose exception it is, if all ranks raise it.
    """

    slug: str
    role: EvidenceRole
    specificity: int
    text: str
    fingerprint: str
    signature: str | None = None
    retry: Retry | None = None
    peers: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    gpu: str | None = None
    pid: int | None = None
    groups: dict[str, str] = {}
    place: int = 0
    end: bool = False
    lost_peer: bool = False
    failed: tuple[int, ...] = ()

    def raised_by(self, rank: int | None) -> Meaning:
        """Meaning of the exception in one rank: where another rank failed, it only repeats."""
        if rank is None or not self.failed or rank in self.failed:
            return self
        return msgspec.structs.replace(self, slug="peer_lost", role="secondary", peers=self.failed)


def exception_meaning(
    catalogue: Catalogue,
    chain: Sequence[tuple[str, str]],
    *,
    frame: str = "",
    mark: Literal["retryable", "final"] | None = None,
    exit_code: int | None = None,
    launcher: bool = False,
) -> Meaning:
    """Classifies an exception by its types and messages.

    The raised one has precedence, then the most specific of its chain: an error while handling a lost connection is
    its consequence. So is a wait in vain while handling an error. If another one gives the cause, the text has it as
    well. ``launcher``: a launcher raised it about a process.
    """
    failed = _failed_ranks(chain)
    chain = _unwrapped(chain)
    hits = [best(catalogue.match_line(_one_line(kind, message), where="exception")) for kind, message in chain]
    place = _handled(chain, hits)
    waited, chain, hits = place > 0, chain[place:], hits[place:]
    head_type, head_text = chain[0] if chain else ("", "")
    print_of = f"{_short(head_type)}:{normalise(head_text.split(chr(10), 1)[0])}:{frame}"
    spoken = f"{_short(head_type)}: {head_text}" if head_text else _short(head_type)
    if _short(head_type) == "SystemExit":
        known = {126: "permission_denied", 127: "command_not_found", 138: "retryable_exception"}
        slug = "retryable_exception" if mark == "retryable" else known.get(exit_code or 0, "user_exit")
        return Meaning(
            slug=slug, role="primary", specificity=10, text=spoken, fingerprint=f"{slug}:{exit_code}:{frame}"
        )
    if head_type in _EXTERNAL and mark is None:
        return Meaning(
            slug="external_signal",
            role="secondary",
            specificity=50,
            text=spoken,
            fingerprint=f"external_signal:{head_type}",
            # A person may have pressed the key.
            retry="once" if head_type == "KeyboardInterrupt" else None,
        )
    ended = _end_of_child(catalogue, head_type, head_text, launcher=launcher)
    if ended is not None and mark is None:
        made = meaning_of_hit(ended, text=spoken, fingerprint=f"{ended.signature.slug}:{print_of}")
        return msgspec.structs.replace(made, end=True)
    if launcher and mark is None and not _has_a_reason(catalogue, head_type, head_text):
        return Meaning(
            slug="controller_verdict",
            role="context",
            specificity=5,
            text=spoken,
            fingerprint=f"controller_verdict:{print_of}",
            end=True,
        )
    found = None
    plain = False
    lost_peer = waited or any(hit is not None and hit.signature.slug == "peer_lost" for hit in hits[1:])
    repeats = [
        kind.endswith(_GROUPS) or _is_wrapper(hit) or _repeats(message, inner)
        for (kind, message), hit, (_, inner) in zip(chain, hits, [*chain, ("", "")][1:], strict=True)
    ]
    # A wrapper or group gives way to the first exception that is none.
    displayed = repeats.index(False) if repeats[:1] == [True] and False in repeats else 0
    specific = [hit for hit in hits if hit is not None and hit.signature.specificity > GENERIC]
    only_wrappers = all(map(_is_wrapper, specific))
    for index, hit in enumerate(hits):
        if hit is None or hit.signature.specificity <= GENERIC or (_is_wrapper(hit) and not only_wrappers):
            continue
        better = found is None or hit.signature.specificity > found.signature.specificity
        # A raised exception of the job's own code yields only to the lost peer that it handled.
        if hit.signature.slug == "peer_lost" if plain else better:
            found, displayed = hit, displayed if repeats[index] else index
        if index == 0 and not repeats[0] and not _QUOTES.match(head_text):
            plain = hit.signature.slug == "user_code_exception"
            if not plain:
                break
    if displayed and (repeats[0] or (found is not None and found.signature.slug != "user_code_exception")):
        kind, message = chain[displayed]
        spoken = f"{spoken}\n{_short(kind)}: {message}" if message else f"{spoken}\n{_short(kind)}"
        place += displayed
    if mark == "retryable":
        return Meaning(
            slug="retryable_exception", role="primary", specificity=90, text=spoken, fingerprint=f"retryable:{print_of}"
        )
    if found is None and "." in head_type:
        found = _suggested(catalogue, head_type, head_text)
    if found is None:
        return Meaning(
            slug="user_code_exception",
            role="primary",
            specificity=GENERIC,
            text=spoken,
            fingerprint=f"user_code_exception:{print_of}",
            place=place,
            lost_peer=lost_peer,
            failed=failed,
        )
    made = meaning_of_hit(found, text=spoken, fingerprint=f"{found.signature.slug}:{print_of}")
    if displayed and made.signature == "dataset_missing.errno" and _OF_SETTINGS.search(head_text[:_MOST]) is not None:
        made = msgspec.structs.replace(made, slug="user_code_exception")
    return msgspec.structs.replace(made, place=place, lost_peer=lost_peer, failed=failed)


def _failed_ranks(chain: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """Ranks that a checkpoint's exception names, which torch raises in all ranks."""
    match = next((m for _, message in chain if (m := _OF_RANKS.match(message[:_MOST]))), None)
    return listed_numbers(match[1]) if match is not None else ()


def _handled(chain: Sequence[tuple[str, str]], hits: Sequence[Hit | None]) -> int:
    """Place of the exception during whose handling the rank waited in vain, or reported to a service, as in a ``finally``; else 0."""
    slugs = ["" if hit is None else hit.signature.slug for hit in hits]
    if slugs[:1] == ["hub_unreachable"]:
        return int(
            len(chain) > 1 and _short(chain[1][0]) in _FAILURES and slugs[1] in {"", "nan_loss", "user_code_exception"}
        )
    if slugs[:1] != ["collective_timeout"]:
        return 0
    for place, ((kind, _), hit) in enumerate(zip(chain, hits, strict=True)):
        if EXPECTED.search(kind) is None and (hit is None or hit.signature.role == "primary"):
            return place
    return 0


def _suggested(catalogue: Catalogue, kind: str, message: str) -> Hit | None:
    """Hit of the words in the name of a library's exception, as in ``pkg.ConnectionClosedError``."""
    name = _HUMPS.sub(r" \g<0>", kind.rpartition(".")[2][:_MAX_NAME])
    hit = best(catalogue.match_line(_one_line(name, message), where="exception"))
    return hit if hit is not None and hit.signature.specificity > GENERIC else None


def _repeats(message: str, inner: str) -> bool:
    """True for a message whose last line is that of the exception that it follows from."""
    return bool(inner) and message.endswith(f"\n{inner}")


def _is_wrapper(hit: Hit | None) -> bool:
    return hit is not None and hit.signature.id in _WRAPPERS


def _unwrapped(chain: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Chain with the exception that torch's workers quote in the message of the raised one."""
    found: list[tuple[str, str]] = []
    for kind, message in chain:
        head, quoted, trace = message.partition(_QUOTED_OF_RANK if _OF_RANKS.match(message[:_MOST]) else _QUOTED)
        last = _last_raised(trace) if quoted else None
        found.append((kind, head.rstrip() if last else message))
        if last:
            found.append((last[1], last[2] or ""))
    return found


def _last_raised(trace: str) -> Match[str] | None:
    """Type and message in the last line of a traceback, or before the next one of torch's list by ranks."""
    return _RAISED.match(trace.partition(_QUOTED_OF_RANK)[0].rstrip().rpartition("\n")[2])


# Types of Python's own exceptions about a connection.
_REFUSED: Final = "ConnectionRefusedError:"
_CONNECTION: Final = frozenset(
    {"ConnectionResetError:", "ConnectionAbortedError:", _REFUSED, "BrokenPipeError:", "OSError:"}
)
# Origins of exceptions about another process of the job.
_OF_PROCESSES: Final = frozenset({"helper", "library", "queue", "data_loader"})
# An EOFError without a message, of a connection or a file.
_END_OF_FILE: Final = "peer_lost.eof"
# Words of an exception that another one about a missing file caused: it is no training data.
_OF_SETTINGS: Final = bounded(r"(?i)\b(?:config(?:uration)?s?|settings|hyper-?parameters) ?(?:file)?\b", limit=_MOST)
# Of a missing file whose name is that of a configuration.
_SETTINGS_FILE: Final = "bad_arguments.settings_file"
# The head of an exception that torch raises for one of a replica, a data worker or a thread, which it quotes.
_QUOTES: Final = anchored(r"Caught \w{1,80} in (?:replica|DataLoader worker|pin memory thread)", limit=256)
# Of a call that takes no path, as that for the current folder.
_NO_PATH: Final = "FileNotFoundError: [Errno 2] No such file or directory"


def needs_frames(meaning: Meaning) -> bool:
    """True for a meaning that an exception's type gives, but its frames may change."""
    if meaning.slug in {"dataset_missing", "bad_sample"} or meaning.signature == _SETTINGS_FILE:
        return True
    return meaning.slug == "peer_lost" and (meaning.signature == _END_OF_FILE or bool(_kinds(meaning) & _CONNECTION))


def _kinds(meaning: Meaning) -> set[str]:
    return {line.partition(" ")[0] for line in meaning.text.split("\n")}


def of_frames(meaning: Meaning, origins: AbstractSet[str]) -> Meaning:
    """Meaning of an exception about a file that is no data, or a connection that is to no peer; ``origins``: as of its frames.

    A file: it is the job's configuration, a command, removed by another process first, or created in a missing folder.
    A connection: a client of a service lost its server.
    """
    if not needs_frames(meaning):
        return meaning
    if meaning.signature == _END_OF_FILE:
        cut = "checkpoint" in origins and origins.isdisjoint(_OF_PROCESSES - {"library"})
        return msgspec.structs.replace(meaning, slug="checkpoint_corrupt", role="primary") if cut else meaning
    if meaning.slug == "peer_lost":
        # No process listens at the port; a refused queue shows the end of its process.
        refused = _REFUSED in _kinds(meaning) and origins.isdisjoint(_OF_PROCESSES)
        served = "server" in origins
        if not (served or refused):
            return meaning
        # Without a client's frames the other end may be a rank after all.
        return msgspec.structs.replace(meaning, slug="hub_unreachable", role="primary", lost_peer=not served)
    if meaning.slug == "bad_sample":
        return msgspec.structs.replace(meaning, slug="bad_arguments") if "settings" in origins else meaning
    if meaning.text.endswith(_NO_PATH):
        return msgspec.structs.replace(meaning, slug="user_code_exception")
    origin = next((one for one in _NO_DATA if one in origins), None)
    exact = origin != "command" or meaning.signature == "dataset_missing.errno"
    if origin is None or not exact:
        return meaning
    # A file that is missing each time was not removed by another process.
    retry: Retry | None = "once" if origin == "removal" else meaning.retry
    return msgspec.structs.replace(meaning, slug=_NO_DATA[origin], retry=retry)


def meaning_of_hit(hit: Hit, *, text: str, fingerprint: str) -> Meaning:
    """Classifies a signature's hit, with the given text and fingerprint."""
    signature, groups = hit.signature, hit.groups
    slug = signature.slug
    if slug == "gpu_oom_foreign" and own_process_holds_most(text):
        slug, fingerprint = "gpu_oom", fingerprint.replace(slug, "gpu_oom", 1)
    return Meaning(
        slug=slug,
        role=signature.role,
        specificity=signature.specificity,
        text=text,
        fingerprint=fingerprint,
        signature=signature.id,
        retry=signature.retry,
        peers=listed_numbers(groups.get("peers") or groups.get("peer_rank") or ""),
        hosts=(groups["host"],) if "host" in groups else (),
        gpu=groups.get("gpu"),
        pid=next(iter(listed_numbers(groups.get("pid", ""))), None),
        groups=groups,
    )


def _has_a_reason(catalogue: Catalogue, kind: str, message: str) -> bool:
    """True if an exception in a launcher's frames names its own reason, as a folder without permission or a used port."""
    hit = best(catalogue.match_line(_one_line(kind, message), where="exception"))
    return hit is not None and kind.endswith("Error") and hit.signature.slug in _OF_A_LAUNCHER


def _end_of_child(catalogue: Catalogue, kind: str, message: str, *, launcher: bool) -> Hit | None:
    """Hit of an exception that reports the end of a child process.

    None for a program's own child that exited with an ordinary code: that is an error of the program.
    """
    if not (launcher or kind.endswith(_CHILD_ERRORS)):
        return None
    hits = catalogue.match_line(_one_line(kind, message), where="line")
    hit = best([one for one in hits if "exit" in one.groups or "signal" in one.groups])
    return hit if launcher or (hit is not None and hit.signature.slug != "user_exit") else None


def ran_training(chain: Sequence[tuple[str, str]]) -> bool:
    """True for the exception of a script that started the training as a command."""
    kind, message = chain[0] if chain else ("", "")
    called = kind.endswith(("CalledProcessError", "RuntimeError")) and _RUNS_TRAINING.match(message) is not None
    return called and _BUILDS.search(message) is None


def listed_numbers(text: str) -> tuple[int, ...]:
    """Numbers of a list as ``1, 3``; at most 1,024 of 7 digits."""
    found = []
    for word in text.replace(",", " ").split()[:1024]:
        digits = word.strip("[](){}.;:'\"")
        number = whole(digits, digits=7) if digits.isdigit() else None
        if number is not None:
            found.append(number)
    return tuple(found)


def _short(name: str) -> str:
    return name.removeprefix("builtins.").removeprefix("__main__.")


def _one_line(kind: str, message: str) -> bytes:
    text = f"{_short(kind)}: {message}" if message else f"{_short(kind)}:"
    return " ".join(text.split("\n"))[:4000].encode("utf-8", "replace")


#: Specificity of words that a job which continues does not print.
SURE_WORDS: Final = 35
#: What ranks that waited or were stopped print too.
OF_THE_REST: Final = WEAK_PRIMARIES | NEAREST.keys() | {"cancelled", "hub_unreachable", "killed_unknown", "user_exit"}


# Examples of causes, which explain a message.
_EXAMPLES: Final = bounded(
    rb"(?i)\((?:e\.g\.|i\.e\.|for example|for instance|such as|like|maybe|possibly)[^()\n]{1,400}\)", limit=4096
)


def hit_of_words(text: bytes, catalogue: Catalogue) -> Hit | None:
    """Returns the hit of the surest words of any program in a line; ``text``: without a prefix."""
    return best(catalogue.match_line(_EXAMPLES.sub(b"", text), where="wording"))


def best_words(
    lines: Iterable[tuple[int, bytes]], *, catalogue: Catalogue, ignored: Collection[str] = ()
) -> tuple[int, bytes, Hit] | None:
    """Returns first byte, line and hit of the line with the surest words of any program; of equals the last one.

    ``ignored``: causes that do not count.
    """
    found: tuple[int, bytes, Hit] | None = None
    for begin, line in lines:
        hit = hit_of_words(line[parse_prefix(line).length :].strip(), catalogue)
        least = 0 if is_severe(line) else SURE_WORDS
        if hit is None or hit.signature.slug in ignored:
            continue
        if hit.signature.specificity >= (found[2].signature.specificity if found else least):
            found = begin, line, hit
    return found
