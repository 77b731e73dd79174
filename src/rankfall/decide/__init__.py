"""Layer decide."""
