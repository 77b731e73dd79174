"""Reader of the kernel log (/dev/kmsg) for node health and evidence.

Parses records, reads each once with an exact cursor, counts gaps and learns the kernel clock. Imports model only: the
health agent must stay small.
"""
