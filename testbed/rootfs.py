"""A small Debian in a folder, by debootstrap, from the mirror that this machine's own apt uses."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import commands
from testbed.errors import UnsupportedError

Say = Callable[[str], None]
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# What containers never read, and what this machine would leave behind in an image: its mirror, name servers and name.
_EMPTIED = (
    "usr/share/doc", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/bash-completion",
    "var/cache/apt", "var/cache/debconf", "var/cache/ldconfig", "var/lib/apt/lists", "var/log", "tmp",
)  # fmt: skip
_REMOVED = ("etc/apt/sources.list", "etc/hostname", "etc/resolv.conf", "var/lib/dpkg/available-old", "debootstrap")


def bootstrap(root: Path, *, suite: str, packages: Sequence[str], log: Path, what: str, seconds: int, say: Say) -> None:
    """Fill a folder with Debian's smallest system and the packages.

    Args:
        root: the folder.
        suite: Debian's name of the release.
        packages: beside the smallest system.
        log: takes the output.
        what: begins the lines of progress.
        seconds: how long it may take.
        say: takes those lines.

    Raises:
        UnsupportedError: not root, or no Debian mirror is known here.
        BuildError: debootstrap failed.
    """
    if os.geteuid() != 0:
        raise UnsupportedError(f"{what} needs root: debootstrap unpacks the files of a whole system")
    # In a mount namespace of its own: what debootstrap mounts inside the folder ends with it, also when it is killed.
    command = ["unshare", "--mount", "--propagation", "private"]
    command += ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", f"--keyring={KEYRING}"]
    command += [suite, str(root), mirror()]
    # Without the folders of root's programs, which some shells of root lack, chroot is not found halfway.
    env = os.environ | {"PATH": os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))}
    proxy = _apt_proxy()
    if proxy:
        env.setdefault("http_proxy", proxy)
    try:
        commands.run(command, log=log, what=what, seconds=seconds, say=say, env=env)
    except commands.CommandError as error:
        raise error.explain(f"{what} could not be made") from error
    _clean(root)


def mirror() -> str:
    """Address of the Debian mirror in apt's own sources.

    Raises:
        UnsupportedError: there is none.
    """
    hint = "run on Debian, or build the images there and copy the cache folder"
    try:
        release = platform.freedesktop_os_release()
        listed = _output(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"])
    except OSError as error:
        raise UnsupportedError(
            "this machine has no apt, and so no mirror of Debian that is known", hint=hint
        ) from error
    suite = release.get("VERSION_CODENAME", "")
    if release.get("ID") == "debian":
        # Updates and security have suites of their own, other people's archives other components.
        for line in listed.splitlines():
            address, _, rest = line.partition(" ")
            if rest == f"{suite} main":
                return address.rstrip("/")
    raise UnsupportedError("apt knows no mirror of Debian's main archive on this machine", hint=hint)


def _apt_proxy() -> str:
    return _output(["apt-config", "shell", "PROXY", "Acquire::http::Proxy"]).partition("=")[2].strip().strip("'\"")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _clean(root: Path) -> None:
    for name in _REMOVED:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in _EMPTIED:
        folder = root / name
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
