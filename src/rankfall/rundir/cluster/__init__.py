"""File formats of an attempt on a cluster, shared by backends, collect and evidence.

Pure reductions of API objects (pods, context, workload state) and the small files that keep them under
kube/attempt-N.
Draws no conclusion and sends no request. Imports model, rundir.layout, kube.object_fields.
"""
