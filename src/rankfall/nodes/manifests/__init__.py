"""Objects of an installation as data: agent, controller, rights of runs, admission policies.

Pure but for reading the settings file. May import: ``nodes`` and ``model`` for names and defaults; makes no
request.
"""
