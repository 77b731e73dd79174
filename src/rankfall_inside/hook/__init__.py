"""The hook: runs in every Python process of a job and reports from ranks.

`rank_process` is the only module loaded where there is no rank, and it imports nothing heavy at the top; `children`,
`exceptions` and `error_record` are loaded when they are needed. Imports the shared modules of `rankfall_inside`
only, never the wrapper. Nothing here may raise into the job.
"""
