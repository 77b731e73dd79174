"""What runs inside the jobs: one program for each kind of launcher, and the faults. Only `faults` is imported elsewhere."""
