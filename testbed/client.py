"""What the bed itself asks of its API server, through the ordinary kubectl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from testbed import process
from testbed.errors import StartError

Object = dict[str, Any]
_DEFINED_S = 60.0
# After a restart of the API server, controllers take up their watches with growing pauses.
_FURNISHED_S = 180.0
# The one in C is ten times as fast; both are safe.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Kubectl:
    """kubectl with one kubeconfig.

    Args:
        program: path of kubectl.
        kubeconfig: of the user that asks.
        cache: folder for what kubectl remembers of the server; beside the kubeconfig where none is given.
    """

    def __init__(self, program: Path, kubeconfig: Path, *, cache: Path | None = None) -> None:
        self.program = program
        self.kubeconfig = kubeconfig
        self.cache = cache or kubeconfig.parent / "kubectl"

    def command(self, *words: str) -> list[str]:
        """The whole command line."""
        return [str(self.program), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}", *words]

    def run(self, *words: str, text: str | None = None, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run it, whatever comes of it."""
        return subprocess.run(
            self.command(*words), input=text, capture_output=True, text=True, check=False, timeout=timeout_s
        )

    def __call__(self, *words: str, text: str | None = None) -> str:
        """Run it; its output.

        Raises:
            StartError: it failed.
        """
        done = self.run(*words, text=text)
        if done.returncode:
            raise StartError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *words: str) -> Object:
        """``kubectl get … -o json``."""
        found: Object = json.loads(self("get", *words, "-o", "json"))
        return found

    def has_event(self, namespace: str, name: str, word: str) -> bool:
        """Whether reason or message of an Event about objects of this name has the word."""
        events = self.get("events", "-n", namespace, "--field-selector", f"involvedObject.name={name}")["items"]
        return any(word in f"{event['reason']} {event['message']}" for event in events)

    def apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Make or change objects."""
        # JSON is YAML, and a definition of half a megabyte is written in a moment instead of seconds.
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [dict(item) for item in objects]})
        words = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        try:
            self(*words, text=text)
        except StartError as error:
            # While it takes up new kinds the server may drop a connection; what was done already is done again.
            if "Unable to connect to the server" not in str(error):
                raise
            self(*words, text=text)

    def create_namespace(self, name: str) -> None:
        """Make a namespace and wait for what every one of them gets: no pod can be made before.

        That takes a while where the API server or the controllers were just started again.

        Raises:
            StartError: it does not come.
        """
        self("create", "namespace", name)
        # Asked again and again: kubectl wait --for=create gives up at once on some of what is not there yet.
        if not self.wait_until(
            "get", "serviceaccount/default", "configmap/kube-root-ca.crt", "-n", name, limit_s=_FURNISHED_S
        ):
            raise StartError(f"namespace {name} gets no account for its pods", hint="does kube-controller-manager run?")

    def define(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Make new kinds of objects, and wait until the API server knows them.

        Raises:
            StartError: it does not.
        """
        self.apply(definitions)
        names = [f"crd/{item['metadata']['name']}" for item in definitions]
        # Asked again and again: kubectl itself gives up on a definition that has no conditions yet.
        words = ("wait", "--for=condition=established", "--timeout=10s", *names)
        if not self.wait_until(*words, limit_s=_DEFINED_S):
            raise StartError(
                f"the API server does not take up {', '.join(names)}", hint="kubectl describe crd tells why"
            )

    def wait_until(self, *words: str, limit_s: float) -> bool:
        """Whether a command succeeds with some output within so many seconds."""

        def ready() -> bool:
            done = self.run(*words)
            return done.returncode == 0 and bool(done.stdout.strip())

        return process.poll(ready, limit_s)


def load(*paths: Path) -> list[Object]:
    """All objects of YAML files, in order."""
    found: list[Object] = []
    for path in paths:
        found += [item for item in yaml.load_all(path.read_text(), Loader=_LOADER) if item]
    return found
