"""One module per group of verbs; ``rankfall.cli.app.VERBS`` loads it when its verb runs.

A command parses its options, calls ``client`` and renders the answer; what two commands share belongs into
``rankfall.cli``.
Commands import no other command. May import everything that ``rankfall.cli`` may, and ``nodes``, ``kube``
and ``loki`` inside functions only.
"""
