"""Programs that the bed takes from Debian's archive: containerd, runc and the like. Installed where they are missing, without starting a service."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from testbed import commands
from testbed.errors import UnsupportedError
from testbed.layout import cache_folder

Say = Callable[[str], None]
_CNI = "/usr/lib/cni"
# Daemons and tools of root; a user's PATH often lacks these.
_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_SECONDS = 60

# Debian's package -> programs and files that say it is there.
PACKAGES = {
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
    "runc": ("runc",),
    "containernetworking-plugins": (f"{_CNI}/bridge", f"{_CNI}/host-local", f"{_CNI}/loopback"),
    "debootstrap": ("debootstrap",),
    "iproute2": ("ip",),
    "iptables": ("iptables",),
    # A shell of many small images: the first lines of a container are tried in it.
    "busybox": ("busybox",),
    # For the one C file of the bed, a clock that is off.
    "gcc": ("cc",),
    "libc6-dev": ("/usr/include/dlfcn.h",),
}
# The same of what few tests need.
BUILDER = {"buildah": ("buildah",)}


def missing(packages: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Those of the packages (default: what every bed needs) of which a program is not on this machine."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_FOLDERS))

    def there(one: str) -> bool:
        return Path(one).exists() if one.startswith("/") else shutil.which(one, path=path) is not None

    return [package for package, programs in (packages or PACKAGES).items() if not all(map(there, programs))]


def command(packages: Iterable[str]) -> list[str]:
    """What installs them."""
    return ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]


def ensure(packages: Mapping[str, Sequence[str]] | None = None, *, say: Say) -> None:
    """Install what is missing of them.

    No service is started: the commands run in a mount namespace of their own, in which there is no running systemd to talk to.
    A bed starts containerd by itself, once a node.

    Args:
        packages: each with its programs; default: what every bed needs.
        say: takes lines of progress.

    Raises:
        UnsupportedError: something is missing, and it cannot be installed from here: not root, or no apt.
        BuildError: apt failed.
    """
    wanted = missing(packages)
    if not wanted:
        return
    line = " ".join(command(wanted))
    if not shutil.which("apt-get"):
        raise UnsupportedError(
            f"the test bed needs programs that are not here, and there is no apt-get: {', '.join(wanted)}",
            hint="install what these packages of Debian give, by this system's own means",
        )
    if os.geteuid() != 0:
        raise UnsupportedError(
            f"the test bed needs programs that are not here: {', '.join(wanted)}", hint=f"run: sudo {line}"
        )
    say(f"installing {', '.join(wanted)}")
    log = cache_folder() / "logs" / "packages.log"
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "--quiet"], command(wanted)):
        try:
            commands.run(_without_services(step), log=log, what="packages", seconds=_SECONDS, say=say, env=env)
        except commands.CommandError as error:
            raise error.explain(f"could not install {', '.join(wanted)}") from error
    left = missing(packages)
    if left:
        raise UnsupportedError(
            f"apt installed {', '.join(wanted)}, yet programs of {', '.join(left)} are still not found",
            hint=f"the log: {log}",
        )


def _without_services(step: list[str]) -> list[str]:
    # Debian's scripts look for this folder before they start anything. It is hidden from them alone, and nothing is left behind.
    running = Path("/run/systemd")
    if not running.is_dir():
        return step
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        f'mount -t tmpfs none {running} && exec "$@"',
        "sh",
        *step,
    ]
