"""Node health: which nodes are faulty, and what is done about it. Package data: ``data/`` (rules, checks).

``rules`` decides and is pure; ``agent`` reads one node's kernel log; ``controller`` writes taints; ``checks``
and ``hooks`` run on tainted nodes; ``manifests`` are the objects of an installation. Faces: ``agent.main``,
``controller.main``, ``commands``. May import: ``kube``, ``loki``, the kernel-log reader,
``verdict.signatures``, ``model``; never what starts jobs.
"""
