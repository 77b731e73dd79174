"""A container's command: a shell bootstrap that finds Python, and the wrapper's arguments.

Runs in dash and busybox; needs Python 3.8 with zlib, else starts the command alone or refuses.
"""

from __future__ import annotations

import json
from typing import Final, Literal

import msgspec

from rankfall.backends.command import Command, command_elsewhere, given_torchrun, job_words
from rankfall.backends.kubernetes.manifests.request import NODE_REFERENCE, Request, check_text, escape
from rankfall.backends.kubernetes.manifests.secrets import in_json, secret_words, word_reference
from rankfall.backends.plan import Launcher, Rendezvous
from rankfall.backends.torchrun import rendezvous_flags
from rankfall.model import JobSpec, Refused
from rankfall.model.exit_codes import CAUSE_CODES

BUNDLE_PATH: Final = "/rankfall/inside.pyz"
_REFUSED: Final = CAUSE_CODES["platform"]

# No option value is "--".
BOOTSTRAP: Final = f"""\
say() {{ echo "rankfall: $1" >&2; }}
for python in "${{RANKFALL_PYTHON-}}" python3 python; do
  [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 || continue
  "$python" -I -S -c 'import sys, zlib; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1 || continue
  exec "$python" -I -S {BUNDLE_PATH} "$@"
done
if [ "${{RANKFALL_INSIDE-}}" = require ]; then
  say "no Python 3.8 or newer in this image, but inside: require needs one; name it in \\$.python"
  exit {_REFUSED}
fi
launcher=exec nproc=1
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --launcher) launcher=$2 ;;
    --nproc) nproc=$2 ;;
    --chdir) cd "$2" || exit {_REFUSED} ;;
    --code)
      say "no Python 3.8 or newer in this image, but one must unpack the job's code; name one in \\$.python, or use kubernetes.workspace"
      exit {_REFUSED}
      ;;
  esac
  shift
done
[ $# -eq 0 ] || shift
for word in "$@"; do
  if [ "$word" = '{NODE_REFERENCE}' ]; then
    say "no Python 3.8 or newer in this image, but one must compute the ranks of this slot; name one in \\$.python"
    exit {_REFUSED}
  fi
done
case $launcher in
  auto | plain)
    if [ "$nproc" -gt 1 ]; then
      say "no Python 3.8 or newer in this image, so $nproc ranks cannot be started here; name one in \\$.python, or use launcher exec"
      exit {_REFUSED}
    fi
    slot="${{RANKFALL_INDEX:-${{RANKFALL_SLOT:-0}}}}" nodes="${{RANKFALL_PLAIN_NNODES:-1}}"
    export RANK="$((${{RANKFALL_FIRST_RANK:-0}} + slot))" GROUP_RANK="$((${{RANKFALL_FIRST_NODE:-0}} + slot))"
    export ROLE_RANK="$slot" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE="$nodes"
    export WORLD_SIZE="${{RANKFALL_WORLD_SIZE:-$nodes}}" ROLE_WORLD_SIZE="${{RANKFALL_ROLE_SIZE:-$nodes}}"
    export ROLE_NAME="${{RANKFALL_ROLE-}}"
    ;;
esac
say "no Python 3.8 or newer in this image: the command starts directly, and Rankfall observes it only from outside"
unset RANKFALL_TOKEN RANKFALL_TORCHRUN
exec "$@"
"""


SLOT_DIR: Final = "/rankfall-run"
DEFAULT_PYTHON: Final = "python3"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Command of a container; words are escaped for Kubernetes, except references.

    Attributes:
        launcher: Launcher of the wrapper.
        chosen: The ranks' launcher; None = decided in the pod.
        words: The command.
        torchrun: The command through torchrun, if usable.
        rdzv: Rendezvous of torchrun.
        note: The choice and its reason.
    """

    launcher: Literal["auto", "torchrun", "plain", "exec"]
    chosen: Launcher | None
    words: tuple[str, ...]
    torchrun: tuple[str, ...] | None = None
    rdzv: Rendezvous = "none"
    note: str

    @property
    def variable(self) -> str | None:
        """Value of ``RANKFALL_TORCHRUN``; None if torchrun cannot be used."""
        return None if self.torchrun is None else json.dumps(tuple(map(in_json, self.torchrun)))


def start_of(request: Request) -> Start:
    """Returns the command of an attempt's containers.

    Raises:
        SpecError: Contradictory flags, or words impossible in Kubernetes.
        Refused: With ``inside: off`` nothing starts the ranks.
    """
    spec = request.spec
    check_text("$.command", spec.command)
    # From here on only intended references expand.
    hidden = {number: word_reference(number) for number in secret_words(spec)}
    words = tuple(hidden.get(number) or escape(word) for number, word in enumerate(spec.command))
    command = command_elsewhere(msgspec.structs.replace(spec, command=words))
    rdzv = request.gang.rdzv
    plain = _words(request, command, rdzv=None)
    if given_torchrun(spec, command):
        words = _words(request, command, rdzv=rdzv)
        note = "launcher: the given torchrun, completed for each slot"
        return Start(launcher="exec", chosen="torchrun", words=words, rdzv=rdzv, note=note)
    if spec.launcher == "torchrun" or (spec.elastic and spec.launcher == "auto"):
        words = _words(request, command, rdzv=rdzv)
        why = "MIN:MAX nodes need it" if spec.elastic else "requested"
        note = f"launcher: torchrun ({why}; the image must have torch)"
        return Start(launcher="torchrun", chosen="torchrun", words=words, torchrun=words, rdzv=rdzv, note=note)
    if spec.launcher == "exec":
        return Start(launcher="exec", chosen="exec", words=plain, note="launcher: exec (requested)")
    if spec.launcher == "plain" or command.kind == "program":
        why = "requested" if spec.launcher == "plain" else "the command is not a Python script"
        return _plain(spec, plain, why)
    if spec.inside == "off":
        return _plain(spec, plain, "with inside: off, no code of Rankfall in the pod could search for torch")
    torchrun = _words(request, command, rdzv=rdzv)
    note = "launcher: torchrun where the image's Python has torch, else plain: each pod decides"
    return Start(launcher="auto", chosen=None, words=plain, torchrun=torchrun, rdzv=rdzv, note=note)


def _plain(spec: JobSpec, words: tuple[str, ...], why: str) -> Start:
    if spec.inside == "off" and spec.nproc_per_node > 1:
        raise Refused(
            f"$.nproc_per_node: {spec.nproc_per_node} ranks of a slot cannot be started with inside: off on backend {spec.backend}: "
            "nothing of Rankfall runs in the pod",
            hint="use launcher torchrun or exec, nproc_per_node 1, or inside: auto",
        )
    note = f"launcher: plain ({why}; it is started once for each rank)"
    return Start(launcher="plain", chosen="plain", words=words, note=note)


def _words(request: Request, command: Command, *, rdzv: Rendezvous | None) -> tuple[str, ...]:
    spec = request.spec
    flags = None
    if rdzv is not None:
        flags = rendezvous_flags(
            spec=spec,
            nnodes=request.least,
            most=request.most,
            node=request.node_reference,
            backend=rdzv,
            run=request.rendezvous_id,
            port=spec.kubernetes.master_port,
            host=request.master,
            role=request.part.name if request.gang.several else None,
        )
    return job_words(
        command,
        python=escape(spec.python or DEFAULT_PYTHON),
        flags=flags,
        log_dir=None if spec.inside == "off" else f"{SLOT_DIR}/torchelastic",
        env=spec.env,
    )
