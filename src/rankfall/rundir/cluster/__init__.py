"""File formats of an attempt on a cluster, under kube/attempt-N.

Pure reductions of API objects; sends no request.
"""
