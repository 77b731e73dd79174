"""Remedies that an operator gave: the ladder, and one call of one of them. Off until there is one."""
