"""Raw streams of a run: names and index, content, appending and compressing.

Others read through ``content`` and ``lines``, append through ``writer``.
"""
