"""Installs the hook in every Python of a job, then runs the sitecustomize that this one hides.

It is loaded because its directory is first on PYTHONPATH. In the bundle this file lies beside the package,
not in it. It must never break the user's Python.
"""

from __future__ import annotations

import os
import sys


def _hook() -> None:
    try:
        from rankfall_inside.hook import rank_process

        rank_process.install()
    except BaseException:
        pass  # whatever it is, the job's Python starts


def _chain() -> None:
    """Run the next sitecustomize on sys.path (Debian ships one), as if this one were not there; its errors are site's to report."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") != "PathFinder":
            continue
        spec = finder.find_spec("sitecustomize", paths)
        if spec is None or spec.loader is None:
            return
        module = type(sys)("sitecustomize")
        module.__spec__ = spec
        module.__loader__ = spec.loader
        module.__file__ = spec.origin
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return


if "RANKFALL_WRAPPER" in os.environ and "RANKFALL_SLOT_DIR" in os.environ:
    _hook()
_chain()
