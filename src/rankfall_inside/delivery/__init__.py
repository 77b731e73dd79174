"""Ways on which output and records leave a slot: stream files, stdout, termination message, stores.

A slow or lost destination never blocks or ends the job; what is lost is counted and reported.
Imports the shared modules of `rankfall_inside` only. The formats are contracts with the readers in Rankfall.
"""
