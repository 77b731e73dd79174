"""Recognisers that turn text into evidence: bytes in, hits out. The tables are ``data/<family>.toml``.

Pure apart from reading the packaged tables. May import: ``rankfall.model``, google-re2. Face:
``catalogue.Catalogue``; ``matcher`` and ``patterns`` load re2 and are imported only where text is matched.
"""
