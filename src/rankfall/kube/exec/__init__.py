"""Commands in running containers: the websocket protocol of exec, and sessions on it.

Faces: ``session.execute`` for little output, ``session.open_exec`` for streams. ``protocol`` does no input or
output. May import: the client and what lies below it.
"""
