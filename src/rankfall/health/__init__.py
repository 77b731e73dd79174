"""Layer health: what a kernel line means for a node, and what is to be done about it. So far its pure core: no requests, no processes."""
