"""Layer store."""
