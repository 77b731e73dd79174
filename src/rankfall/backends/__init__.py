"""Layer backends."""
