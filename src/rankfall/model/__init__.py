"""Layer model."""
