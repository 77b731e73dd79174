"""``rankfall agent``: reads one node's kernel log, each record once, and shows on the Node what is wrong. It has no right to taint."""
