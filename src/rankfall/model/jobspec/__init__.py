"""The job spec ``rankfall.job/1``: sections, sizes, and checks without a machine or cluster."""
