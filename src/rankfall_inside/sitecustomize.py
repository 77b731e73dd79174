"""Installs the hook in each Python of a job, then runs the hidden sitecustomize."""

from __future__ import annotations

import os
import sys


def _hook() -> None:
    try:
        from rankfall_inside.hook import rank_process

        rank_process.install()
    except BaseException:
        pass  # the job's Python must start


def _chain() -> None:
    """Runs the next sitecustomize on sys.path (Debian has one)."""
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
