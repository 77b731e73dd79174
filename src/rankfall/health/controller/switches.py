"""What a person sets while the controller runs: the ConfigMap ``rankfall-controller``. Pure but for its name.

``kill-switch: "true"`` stops every change of a taint; ``breaker-reset: WORD`` closes the breaker once for each new word. A kill switch that cannot be read
counts as on: whoever wrote it wanted to stop something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rankfall.model.health import shown

NAME: Final = "rankfall-controller"
_ON: Final = frozenset({"true", "on", "yes", "1"})
_OFF: Final = frozenset({"", "false", "off", "no", "0"})


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """As they stand.

    Attributes:
        kill: no taint changes.
        reset_word: the breaker is closed when this is another word than before.
        problem: what of it cannot be read.
    """

    kill: bool = False
    reset_word: str = ""
    problem: str | None = None


def read_switches(item: Mapping[str, Any] | None) -> Switches:
    """The switches of the ConfigMap; None = there is none, and nothing is switched."""
    data = (item or {}).get("data") or {}
    word = str(data.get("kill-switch", "")).strip().lower()
    problem = None
    if word not in _ON | _OFF:
        problem = f"ConfigMap {NAME}: kill-switch {shown(word, 40)!r} is neither true nor false; it counts as true"
    return Switches(kill=word not in _OFF, reset_word=shown(str(data.get("breaker-reset", "")), 128), problem=problem)
