"""Layer explain."""
