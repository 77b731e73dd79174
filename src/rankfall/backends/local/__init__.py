"""The local backend: slots are process groups on this machine.

Imports the shared modules of `backends`, `rundir`, `model` and `verdict.diagnose`. `ports` imports no Rankfall module:
`rankfall doctor` uses it.
"""
