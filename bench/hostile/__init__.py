"""What hostile output of a job costs its supervision, beside plain text of the same bytes and lines."""
