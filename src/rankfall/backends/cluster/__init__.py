"""Jobs in a cluster: a spec compiled to manifests, and what starts, watches and ends them there.

Compiling is pure: the same spec, run, attempt and token give the same manifests, so ``--dry-run`` shows what would be created.
"""
