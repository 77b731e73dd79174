"""Layer diagnose."""
