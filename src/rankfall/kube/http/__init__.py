"""HTTP below the client; knows no Kubernetes objects.

The public class is ``transport.Transport``.
"""
