"""The images of the bed: made here, kept in the cache as archives, imported into each node; no registry is asked.

torch is in none of them: it is gigabytes. Pods get the project's own virtual environment from the host (:func:`torch_mounts`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from testbed import builds, components, oci, rootfs, store
from testbed.errors import BuildError, UnsupportedError
from testbed.layout import cache_folder

Say = Callable[[str], None]
# Raised when the same recipes would give other contents.
_RECIPE = "1"
_PACKAGES = ("python3",)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an image is made.

    Attributes:
        image: its name and what it starts.
        program: of the component ``programs``; the image has this one file.
        suite: of Debian; the image is a small Debian with Python.
        packages: of that Debian, beside its smallest system.
        seconds: how long it takes, for the progress lines.
        seldom: few tests need it: it is made when it is asked for by its name.
    """

    image: oci.Image
    program: str = ""
    suite: str = ""
    packages: tuple[str, ...] = _PACKAGES
    seconds: int = 1
    seldom: bool = False

    @property
    def key(self) -> str:
        """Name of its folder in the cache."""
        made_of = components.table()["programs"].key if self.program else " ".join((self.suite, *self.packages))
        digest = hashlib.sha256(f"{_RECIPE}\n{platform.machine()}\n{self.image!r}\n{made_of}".encode()).hexdigest()
        return f"{self.image.name.rpartition('/')[2].replace(':', '-')}-{digest[:12]}"


def _static(program: str) -> Recipe:
    return Recipe(image=oci.Image(name=f"rankfall.test/{program}:1", entrypoint=(f"/{program}",)), program=program)


def _python(version: str, suite: str) -> Recipe:
    return Recipe(
        image=oci.Image(name=f"rankfall.test/python:{version}", entrypoint=("python3",)), suite=suite, seconds=80
    )


RECIPES = {
    "pause": _static("pause"),
    "static": _static("static"),
    "python": _python("3.11", "bookworm"),
    "python39": _python("3.9", "bullseye"),
    "python313": _python("3.13", "trixie"),
    # What an image is built on whose recipe makes a virtual environment.
    "python-venv": Recipe(
        image=oci.Image(name="rankfall.test/python-venv:3.11"),
        suite="bookworm",
        packages=(*_PACKAGES, "python3-venv"),
        seconds=90,
        seldom=True,
    ),
}
# The names to ask for here -> the names that pods use.
NAMES = {name: recipe.image.name for name, recipe in RECIPES.items()}


def ensure(names: Iterable[str], *, say: Say) -> dict[str, Path]:
    """The archive of each image; what is not in the cache is made.

    Args:
        names: of ``NAMES``.
        say: takes lines of progress.

    Raises:
        BuildError: no such image, or it could not be made.
        UnsupportedError: it can only be made on Debian and by root.
    """
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in RECIPES]
    if unknown:
        raise BuildError(f"there is no image {', '.join(unknown)}", hint=f"choose of: {', '.join(RECIPES)}")
    paths = {}
    for name in wanted:
        fill = functools.partial(_fill, name, say)
        entry = store.make(folder(name), fill, what=f"image {name}", say=say)
        paths[name] = entry / "image.tar"
    return paths


def folder(name: str) -> Path:
    """Where the cache keeps an image, whether it is there or not."""
    return cache_folder() / "images" / RECIPES[name].key


def prune() -> list[Path]:
    """Remove the images that no recipe names any more. Says what was removed."""
    return store.prune(cache_folder() / "images", {recipe.key for recipe in RECIPES.values()})


def torch_mounts() -> tuple[Path, ...]:
    """Folders of the host that a pod of the image ``python`` must see at the same paths to run ``torch_python()``.

    The virtual environment, and the Python that it was made from where that is not Debian's own: the image has that one.

    Raises:
        UnsupportedError: this Python has no torch, or is one that the image does not have and cannot be given.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("this Python has no torch to lend to pods", hint="run: make setup")
    places = [Path(sys.prefix)]
    if Path(sys.base_prefix) == Path("/usr"):
        version = ".".join(map(str, sys.version_info[:2]))
        if NAMES["python"] != f"rankfall.test/python:{version}":
            raise UnsupportedError(
                f"pods cannot use this virtual environment: it stands on the system's Python {version}, the image has another",
                hint="make the virtual environment with a Python outside /usr, or with Python 3.11",
            )
    else:
        # Links on the way to the interpreter are followed inside the pod, so both ends must be there.
        places += [Path(sys.base_prefix), Path(sys.base_exec_prefix), Path(os.path.realpath(sys.executable)).parents[1]]
    places += [Path(os.path.realpath(place)) for place in places]
    return tuple(sorted(place for place in set(places) if not any(other in place.parents for other in places)))


def torch_python() -> Path:
    """The interpreter that has torch, on the host and, with ``torch_mounts()``, in a pod."""
    return Path(sys.prefix) / "bin" / "python"


def _fill(name: str, say: Say, scratch: Path) -> None:
    recipe = RECIPES[name]
    root = scratch / "root"
    root.mkdir(mode=0o755)
    if recipe.program:
        source = builds.ensure(["programs"], say=say)[recipe.program]
        target = root / recipe.program
        shutil.copyfile(source, target)
        target.chmod(0o755)
        os.utime(target, (0, 0))
    else:
        say(f"image {name}: building, about {recipe.seconds} s")
        log = cache_folder() / "logs" / f"image-{name}.log"
        log.unlink(missing_ok=True)
        rootfs.bootstrap(
            root,
            suite=recipe.suite,
            packages=recipe.packages,
            log=log,
            what=f"image {name}",
            seconds=recipe.seconds,
            say=say,
        )
    oci.pack(recipe.image, root, scratch / "image.tar")
    shutil.rmtree(root)
    say(f"image {name}: done")
