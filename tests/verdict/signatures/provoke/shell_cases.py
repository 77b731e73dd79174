"""Words of bash, the C library and ssh."""

from __future__ import annotations

import shutil
import socket

from cases import case, main, python, run


@case("command_not_found")
def not_found() -> None:
    run(["bash", "-c", "trainn --lr 1"])


@case("command_not_found")
def not_found_sh() -> None:
    run(["sh", "-c", "trainn --lr 1"])


@case("command_not_found")
def no_such_path() -> None:
    run(["bash", "-c", "/opt/none/train.sh"])


@case("command_not_found")
def env_no_such() -> None:
    run(["env", "trainn"])


@case("permission_denied")
def not_executable() -> None:
    run(["bash", "-c", "touch run.sh; ./run.sh"])


@case("segfault")
def segfault() -> None:
    run(["bash", "-c", "bash -c 'kill -SEGV $$'; true"])


@case("killed_unknown")
def killed() -> None:
    run(["bash", "-c", "bash -c 'kill -KILL $$'; true"])


@case("native_abort")
def aborted() -> None:
    run(["bash", "-c", "bash -c 'kill -ABRT $$'; true"])


@case("shm_exhausted")
def bus() -> None:
    run(["bash", "-c", "bash -c 'kill -BUS $$'; true"])


@case("native_abort")
def illegal() -> None:
    run(["bash", "-c", "bash -c 'kill -ILL $$'; true"])


@case("external_signal")
def terminated() -> None:
    run(["bash", "-c", "bash -c 'kill -TERM $$'; true"])


@case("disk_full")
def write_full() -> None:
    run(["bash", "-c", "dd if=/dev/zero of=/dev/full bs=1 count=1"])


@case("native_abort")
def double_free() -> None:
    python(
        "import ctypes\nc=ctypes.CDLL(None);c.malloc.restype=ctypes.c_void_p\np=ctypes.c_void_p(c.malloc(40));c.free(p);c.free(p)"
    )


@case("native_abort")
def invalid_pointer() -> None:
    python(
        "import ctypes\nb=ctypes.create_string_buffer(99)\nctypes.CDLL(None).free(ctypes.c_void_p(ctypes.addressof(b)+24))"
    )


@case("native_abort")
def corrupted_size() -> None:
    python(
        "import ctypes\nc=ctypes.CDLL(None);c.malloc.restype=ctypes.c_void_p\n"
        "p=c.malloc(2000);c.malloc(40);ctypes.memset(p+2000,255,16);c.free(ctypes.c_void_p(p))"
    )


def ssh_name() -> None:
    run(["ssh", "-o", "BatchMode=yes", "worker-7.train.invalid", "true"])


def ssh_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run(["ssh", "-o", "BatchMode=yes", "-p", str(port), "127.0.0.1", "true"])


if shutil.which("ssh"):
    case("hostname_resolution")(ssh_name)
    case("ssh_unreachable")(ssh_refused)


@case("entrypoint_missing")
def bash_no_script() -> None:
    run(["bash", "launch_all.sh"])


if __name__ == "__main__":
    main()
