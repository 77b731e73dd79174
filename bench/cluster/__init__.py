"""What runs cost a cluster."""
