"""Layer observe."""
