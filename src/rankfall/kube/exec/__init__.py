"""Commands in running containers: ``session.execute`` for little output, ``session.open_exec`` for streams."""
