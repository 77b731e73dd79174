"""How a container starts the job: the words after the wrapper, and which launcher they are for.

The image cannot be looked at from here. So whether its Python has torch is left to the wrapper where the spec leaves it open, and a script
that does not exist is the job's own error there.
"""

from __future__ import annotations

import json
from typing import Final, Literal

import msgspec

from rankfall.backends.cluster.objects import Request
from rankfall.backends.cluster.secret_values import in_json, secret_words, word_reference
from rankfall.backends.cluster.text import check_text, escape
from rankfall.backends.command import Command, command_elsewhere, given_torchrun, job_words
from rankfall.backends.plan import Launcher, Rendezvous
from rankfall.backends.torchrun import rendezvous_flags
from rankfall.model import JobSpec, Refused

SLOT_DIR: Final = "/rankfall-run"
DEFAULT_PYTHON: Final = "python3"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a container starts. All words are Kubernetes' text: dollar signs doubled, except for the slot's number and secret arguments.

    Attributes:
        launcher: the wrapper's.
        chosen: how ranks are started; None = decided in the pod.
        words: the command.
        torchrun: the command through torchrun, where the wrapper may or must take it.
        rdzv: of torchrun.
        note: what was chosen and why.
    """

    launcher: Literal["auto", "torchrun", "plain", "exec"]
    chosen: Launcher | None
    words: tuple[str, ...]
    torchrun: tuple[str, ...] | None = None
    rdzv: Rendezvous = "none"
    note: str

    @property
    def variable(self) -> str | None:
        """Value of ``RANKFALL_TORCHRUN``."""
        return None if self.torchrun is None else json.dumps(tuple(map(in_json, self.torchrun)))


def start_of(request: Request) -> Start:
    """What the containers of an attempt start.

    Raises:
        SpecError: flags of a given torchrun contradict the job, or the words cannot be carried by Kubernetes.
        Refused: ``inside: off`` leaves nobody who could start what is asked.
    """
    spec = request.spec
    check_text("$.command", spec.command)
    # From here on every word is Kubernetes' text, so the references that are meant stand out.
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
        why = "MIN:MAX nodes need it" if spec.elastic else "asked for"
        note = f"launcher: torchrun ({why}; the image must have torch)"
        return Start(launcher="torchrun", chosen="torchrun", words=words, torchrun=words, rdzv=rdzv, note=note)
    if spec.launcher == "exec":
        return Start(launcher="exec", chosen="exec", words=plain, note="launcher: exec (asked for)")
    if spec.launcher == "plain" or command.kind == "program":
        why = "asked for" if spec.launcher == "plain" else "the command is a program of its own"
        return _plain(spec, plain, why)
    if spec.inside == "off":
        return _plain(spec, plain, "with inside: off nobody in the pod could look for torch")
    torchrun = _words(request, command, rdzv=rdzv)
    note = "launcher: torchrun where the image's Python has torch, else plain: decided in each pod"
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
