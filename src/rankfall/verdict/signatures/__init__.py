"""Recognizers that convert text to evidence; the tables are ``data/<family>.toml``.

Only ``matcher`` and ``patterns`` load re2, when needed.
"""
