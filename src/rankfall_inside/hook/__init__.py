"""The hook: runs in every Python process of a job and records from ranks; nothing may raise into the job.

Without a rank only `rank_process` loads. Never imports the wrapper.
"""
