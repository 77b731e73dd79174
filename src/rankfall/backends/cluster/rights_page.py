"""The section "Rights" of docs/kubernetes.md, made from the table: ``python -m rankfall.backends.cluster.rights_page``; a test holds both together.

Only what stands between the two marks is written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rankfall.backends.cluster.rights import BACKENDS, RIGHTS, VERBS, Right, role

PAGE: Final = Path("docs") / "kubernetes.md"
BEGIN: Final = "<!-- rights: made by `python -m rankfall.backends.cluster.rights_page` -->\n"
END: Final = "<!-- /rights -->\n"

_HEAD: Final = """
Every run that the tests make on a cluster is made by an account with exactly these rights in the namespace of its jobs, and none elsewhere: those of all
backends, or of the one backend that the test is about. `rankfall config rights` prints this Role; `--backend job` leaves out what that backend does not ask for:

```yaml
"""
_TABLE: Final = """```

| on | verbs | backends | for |
| --- | --- | --- | --- |
"""
_TAIL: Final = """
- Which kinds are served is asked by discovery, which every authenticated user may. The image's own service account needs no right.
- Nodes are no part of a namespace, so they need a ClusterRole: `get`, `list` and `watch` of `nodes`. With it verdicts know when a node was away or booted anew, and what `rankfall agent` recorded of its devices; who may
  only `get` them is told when a pod does not go because its node is not ready. `list` and `watch` of `events` in the namespace `default` adds what kubelets say of their nodes. Without them a verdict names that as missing.
  `get` of `leases` in the namespace `kube-node-lease` bounds the clocks of nodes more closely; without it the stamps of pods and lines do, and nothing is said.
- To tell a Node that it felled the run, and to begin the next attempt after the taint: [node-health.md](node-health.md#joined-with-jobs).

"""
_BARE: Final = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z][a-z0-9./-]*")


def section(namespace: str = "team-a") -> str:
    """The text between the marks.

    Args:
        namespace: of the Role that is shown.
    """
    return "".join([_HEAD, manifest(role(namespace=namespace)), _TABLE, *map(_line, RIGHTS), _TAIL])


def manifest(made: Mapping[str, Any]) -> str:
    """A Role as people write it: a list in one line."""
    meta = ", ".join(f"{key}: {_word(value)}" for key, value in made["metadata"].items())
    lines = [f"apiVersion: {made['apiVersion']}", f"kind: {made['kind']}", f"metadata: {{{meta}}}", "rules:"]
    for rule in made["rules"]:
        first, *rest = (f"{key}: [{', '.join(map(_word, values))}]" for key, values in rule.items())
        lines += [f"  - {first}", *(f"    {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    """A page with the section as it is now.

    Args:
        page: the whole text; it has both marks.
    """
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{section()}{END}{after}"


def _line(row: Right) -> str:
    verbs = ", ".join(verb for verb in VERBS if verb in row.verbs)
    backends = "all" if row.backends == BACKENDS else ", ".join(f"`{one}`" for one in row.backends)
    return f"| `{row.name}` | {verbs} | {backends} | {row.why} |\n"


def _word(text: str) -> str:
    return text if _BARE.fullmatch(text) else json.dumps(text)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
