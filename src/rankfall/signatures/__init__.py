"""Layer signatures."""
