"""Layer supervise."""
