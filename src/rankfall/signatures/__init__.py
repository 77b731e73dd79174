"""Recognisers that turn text into evidence: the tables, the catalogue and the matcher. Pure: bytes in, hits out."""
