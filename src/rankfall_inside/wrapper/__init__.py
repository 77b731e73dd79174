"""The wrapper: process 1 of a container or of a local slot. It starts the command and observes it.

`wrapper` is the face, run by `rankfall_inside.__main__`. Its start delays every slot: no import of json, typing,
subprocess or socket at the top (a test watches). Imports `delivery` and the shared modules, never the hook:
both meet in files and pipes of the slot directory. A failure of its own never stops a job.
"""
