"""One module per group of verbs; ``rankfall.cli.app.VERBS`` loads it on use.

Commands import no other command; shared code is in ``rankfall.cli``. ``nodes``, ``kube`` and ``loki`` only inside
functions.
"""
