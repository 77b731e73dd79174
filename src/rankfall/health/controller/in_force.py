"""What a controller goes by now: rules and policy of the file, made stricter by its flags and by what people set."""

from __future__ import annotations

import msgspec

from rankfall.health.config import ConfigFile
from rankfall.health.controller.settings import Settings
from rankfall.health.controller.switches import Switches
from rankfall.health.controller.telling import LOG
from rankfall.health.policy import Policy
from rankfall.health.rules import Rules


class InForce:
    """What is in force.

    Args:
        config: policy and rules, read again when the file changes.
        settings: of the controller's flags.
    """

    def __init__(self, config: ConfigFile, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._switches = Switches()
        self._policy = self._made()

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._config.config.rules

    @property
    def policy(self) -> Policy:
        """The policy in force: of the file, flags and switches. The same object as long as nothing of it changes."""
        made = self._made()
        if made != self._policy:
            self._policy = made
        return self._policy

    @property
    def reset_word(self) -> str:
        """The word by which a person closes the breaker; "" where there is none."""
        return self._switches.reset_word

    def switch(self, switches: Switches) -> bool:
        """Take what a person set; whether that is something new."""
        if switches == self._switches:
            return False
        if switches.problem is not None:
            LOG.warning("%s", switches.problem)
        if switches.kill != self._switches.kill:
            LOG.warning("the kill switch is %s", "on: no taint changes" if switches.kill else "off")
        self._switches = switches
        return True

    def _made(self) -> Policy:
        base = self._config.config.policy
        return msgspec.structs.replace(
            base,
            # A file that asks for a dry run while this one writes: the most that can be done is to change no taint any more.
            kill_switch=base.kill_switch or self._switches.kill or (base.dry_run and not self._settings.dry_run),
            dry_run=self._settings.dry_run,
            accept_injected=base.accept_injected or self._settings.accept_injected,
        )
