"""The rules that hold now: which of them strike a request, and the means to call, release and remove a fault while it lasts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from testbed.errors import TestbedError
from testbed.proxy.rules import Action, Match, Rule, When

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


@dataclass(frozen=True)
class Facts:
    """What rules look at in a request."""

    method: str
    path: str
    query: str
    user_agent: str = ""

    @classmethod
    def of(cls, method: str, target: str, user_agent: str) -> Facts:
        """From the request line."""
        parts = urlsplit(target if target.startswith("/") else f"/{target}")
        return cls(method, parts.path, parts.query, user_agent)

    @property
    def watch(self) -> bool:
        """Whether it is a watch."""
        return "/watch/" in self.path or self.flag("watch")

    @property
    def follow(self) -> bool:
        """Whether it follows a log."""
        return self.path.endswith("/log") and self.flag("follow")

    def flag(self, name: str) -> bool:
        """Whether a parameter of the query is true."""
        return bool(_TRUE.intersection(parse_qs(self.query).get(name, ())))


class Armed:
    """One rule while it holds."""

    def __init__(self, name: str, rule: Rule) -> None:
        self.name, self.rule = name, rule
        self.removed = False
        self.rng = random.Random(rule.match.seed)  # noqa: S311 - dice of a test, to be thrown again the same way
        self._seen = self._chosen = 0
        self._held: set[asyncio.Future[None]] = set()
        self._listeners: set[Callable[[], None]] = set()
        self._patterns = _compile(name, rule.match)

    @property
    def action(self) -> Action:
        """What happens."""
        return self.rule.action

    def strikes(self, facts: Facts) -> bool:
        """Whether a new request is struck; counts it."""
        match = self.rule.match
        fits = (
            match.method in {None, facts.method}
            and match.watch in {None, facts.watch}
            and match.follow in {None, facts.follow}
            and all(pattern.search(text) for pattern, text in self._pairs(facts))
        )
        if not fits:
            return False
        self._seen += 1
        if match.nth not in {None, self._seen}:
            return False
        if match.times is not None and self._chosen >= match.times:
            return False
        if match.probability < 1 and self.rng.random() >= match.probability:
            return False
        self._chosen += 1
        return True

    def moment(self, when: When) -> tuple[int | None, float | None]:
        """Bytes and seconds of a moment, with the dice thrown."""
        if when.random_bytes is not None:
            return self.rng.randint(*when.random_bytes), None
        if when.mean_life_s is not None:
            return None, self.rng.expovariate(1 / when.mean_life_s)
        return when.after_bytes, when.after_s

    async def hold(self, seconds: float | None) -> bool:
        """Wait so long, or until released or removed; whether somebody released."""
        if self.removed:
            return True
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.add(held)
        try:
            async with asyncio.timeout(seconds):
                await held
        except TimeoutError:
            return False
        finally:
            self._held.discard(held)
        return True

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have something called at each ``fire``; gives the means to end that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def fire(self) -> None:
        """The moment ``called`` is now, for all requests that wait for it."""
        for listener in list(self._listeners):
            listener()

    def release(self) -> None:
        """Everything that this rule holds up goes on."""
        for held in self._held:
            if not held.done():
                held.set_result(None)

    def _pairs(self, facts: Facts) -> list[tuple[re.Pattern[str], str]]:
        return [(pattern, getattr(facts, field)) for field, pattern in self._patterns]


class Book:
    """All rules, in order."""

    def __init__(self) -> None:
        self._rules: dict[str, Armed] = {}

    def add(self, name: str, rule: Rule) -> None:
        """A rule holds from now on; one of the same name is replaced, in its place.

        Raises:
            TestbedError: a regular expression is none.
        """
        armed = Armed(name, rule)
        old = self._rules.get(name)
        self._rules[name] = armed
        if old is not None:
            _lift(old)

    def remove(self, name: str) -> None:
        """A rule holds no more; what it holds up goes on. Nothing happens where there is none: undoing twice is no error."""
        with contextlib.suppress(KeyError):
            _lift(self._rules.pop(name))

    def clear(self) -> None:
        """No rules."""
        for name in list(self._rules):
            self.remove(name)

    def named(self, name: str) -> Armed:
        """The rule of this name.

        Raises:
            TestbedError: there is none.
        """
        if name not in self._rules:
            raise TestbedError(f"the fault proxy has no rule {name!r}", hint=f"it has: {sorted(self._rules)}")
        return self._rules[name]

    def strikes(self, facts: Facts) -> list[Armed]:
        """Rules that strike a new request, in order."""
        return [armed for armed in self._rules.values() if armed.strikes(facts)]

    def rules(self) -> dict[str, Rule]:
        """What holds now."""
        return {name: armed.rule for name, armed in self._rules.items()}


def _lift(armed: Armed) -> None:
    armed.removed = True
    armed.release()


def _compile(name: str, match: Match) -> list[tuple[str, re.Pattern[str]]]:
    found = []
    for field in ("path", "query", "user_agent"):
        text = getattr(match, field)
        if text is None:
            continue
        try:
            found.append((field, re.compile(text)))
        except re.error as error:
            raise TestbedError(
                f"rule {name!r}: {field} is no regular expression: {error}", hint=f"it is {text!r}; correct it"
            ) from error
    return found
