"""Raw streams of a run: names and index, content in raw or compressed form, appending and compressing.

Other rooms read streams through content and lines, and append through writer.
Imports model and, from rundir, nothing at run time.
"""
