"""Checks of a node as Jobs, before it is given back: what can be checked, the Jobs, a round of them."""
