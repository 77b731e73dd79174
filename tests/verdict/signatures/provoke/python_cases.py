"""Python's own words: exceptions, exits, missing modules, system calls that fail."""

from __future__ import annotations

import pickle
import resource
import socket
import urllib.request
from pathlib import Path

from cases import case, main, python, run


@case("user_code_exception")
def value_error() -> None:
    python("raise ValueError('batch size 7 is odd')")


@case("user_code_exception")
def key_error() -> None:
    python("{}['lr']")


@case("user_code_exception")
def assertion() -> None:
    python("assert 1 == 2, 'loss went up'")


@case("user_code_exception")
def own_type() -> None:
    python("class TrainingFailed(Exception): pass\nraise TrainingFailed('see above')")


@case("user_code_exception")
def recursion() -> None:
    python("def f(n): return f(n + 1)\nf(0)")


@case("import_error")
def module_not_found() -> None:
    python("import flash_attn_9")


@case("import_error")
def import_name() -> None:
    python("from os import flash_attention")


@case("import_error")
def syntax() -> None:
    Path("broken.py").write_text("def f(:\n    pass\n")
    python("import broken")


@case("import_error")
def shared_object() -> None:
    python("import ctypes\nctypes.CDLL('libcudart.so.99')")


@case("import_error")
def undefined_symbol() -> None:
    python("import ctypes\nctypes.CDLL(None).no_such_symbol_here")


@case("bad_arguments")
def argparse_choice() -> None:
    python(
        "import argparse\np=argparse.ArgumentParser('train.py')\np.add_argument('--mode',choices=['a','b'])\np.parse_args(['--mode','x'])"
    )


@case("bad_arguments")
def argparse_unknown() -> None:
    python("import argparse\np=argparse.ArgumentParser('train.py')\np.parse_args(['--lr','1'])")


@case("bad_arguments")
def argparse_required() -> None:
    python(
        "import argparse\np=argparse.ArgumentParser('train.py')\np.add_argument('--data',required=True)\np.parse_args([])"
    )


@case("bad_arguments")
def argparse_type() -> None:
    python(
        "import argparse\np=argparse.ArgumentParser('train.py')\np.add_argument('--n',type=int)\np.parse_args(['--n','x'])"
    )


@case("entrypoint_missing")
def no_script() -> None:
    run(["python3", "trian.py"])


@case("entrypoint_missing")
def no_module() -> None:
    run(["python3", "-m", "trian_module"])


@case("dataset_missing")
def missing_data() -> None:
    python("open('data/train-00001.bin','rb')")


@case("file_race")
def removed_meanwhile() -> None:
    python("import os\nos.rename('cache/index.tmp','cache/index')")


@case("permission_denied")
def denied() -> None:
    Path("secret").write_text("x")
    Path("secret").chmod(0)
    python("import os\nos.geteuid() or os.seteuid(65534)\nopen('secret')")


@case("disk_full")
def no_space() -> None:
    python("f=open('/dev/full','wb',0)\nf.write(b'x'*10)")


@case("shared_fs_error")
def io_error() -> None:
    python("open('/proc/self/mem','rb').read(1)")


@case("host_alloc_failed")
def memory_error() -> None:
    python("bytearray(1 << 60)")


@case("host_alloc_failed")
def numpy_memory() -> None:
    python("import numpy\nnumpy.zeros((1 << 40, 1 << 12))")


@case("host_alloc_failed")
def cannot_allocate() -> None:
    python("import mmap, resource\nresource.setrlimit(resource.RLIMIT_AS,(1<<30,1<<30))\nmmap.mmap(-1, 1<<33)")


@case("address_in_use")
def port_taken() -> None:
    python("import socket\na=socket.socket();a.bind(('127.0.0.1',0));a.listen()\nsocket.create_server(a.getsockname())")


@case("hostname_resolution")
def unknown_host() -> None:
    python("import socket\nsocket.create_connection(('worker-7.train.invalid', 29500))")


@case("peer_lost")
def refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))")


@case("peer_lost")
def reset() -> None:
    python(
        "import socket,struct\n"
        "s=socket.create_server(('127.0.0.1',0));c=socket.create_connection(s.getsockname());p,_=s.accept()\n"
        "p.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0));p.close();c.recv(1)"
    )


@case("peer_lost")
def broken_pipe() -> None:
    python("import socket\na,b=socket.socketpair();b.close();a.send(b'x')")


@case("peer_lost")
def end_of_stream() -> None:
    python("import multiprocessing as m\na,b=m.Pipe();b.close();a.recv()")


@case("hub_unreachable")
def url_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    urllib.request.urlopen(f"http://127.0.0.1:{port}/model.safetensors", timeout=5)


@case("checkpoint_corrupt")
def pickle_truncated() -> None:
    pickle.loads(pickle.dumps([1] * 50)[:-5])  # noqa: S301 - bytes of our own


@case("bad_sample")
def bad_utf8() -> None:
    python("b'caf\\xe9 au lait'.decode()")


@case("segfault")
def faulthandler_segv() -> None:
    python("import faulthandler,os,signal\nfaulthandler.enable()\nos.kill(os.getpid(),signal.SIGSEGV)")


@case("native_abort")
def faulthandler_abort() -> None:
    python("import faulthandler,os\nfaulthandler.enable()\nos.abort()")


@case("shm_exhausted")
def faulthandler_bus() -> None:
    python("import faulthandler,os,signal\nfaulthandler.enable()\nos.kill(os.getpid(),signal.SIGBUS)")


@case("user_exit")
def exit_text() -> None:
    python("import subprocess,sys\nsubprocess.run([sys.executable,'-c','raise SystemExit(3)'],check=True)")


@case("segfault")
def child_segfault() -> None:
    python("import subprocess\nsubprocess.run(['sh','-c','kill -SEGV $$'],check=True)")


@case("killed_unknown")
def child_killed() -> None:
    python("import subprocess\nsubprocess.run(['sh','-c','kill -KILL $$'],check=True)")


@case("dataloader_died")
def pool_worker_killed() -> None:
    python(
        "import os,signal\nfrom concurrent.futures import ProcessPoolExecutor as P\n"
        "def f(): os.kill(os.getpid(),signal.SIGKILL)\n"
        "with P(1) as p: p.submit(f).result()"
    )


@case("external_signal")
def interrupted() -> None:
    # Started by a shell in the background Python ignores SIGINT; a terminal's does not.
    python(
        "import os,signal\nsignal.signal(signal.SIGINT,signal.default_int_handler)\nos.kill(os.getpid(),signal.SIGINT)\nsignal.pause()"
    )


@case("host_alloc_failed")
def no_more_threads() -> None:
    python(
        "import os,resource,threading\nresource.setrlimit(resource.RLIMIT_NPROC,(1,1))\nos.getuid() or os.setuid(65534)\n"
        "threading.Thread(target=print).start()"
    )


@case("user_code_exception")
def too_many_files() -> None:
    soft = min(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    python(
        f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE,({soft},{soft}))\n[open('/dev/null') for _ in range(99)]"
    )


@case("bad_sample")
def bad_json() -> None:
    python('import json\njson.loads(\'{"text": "x\')')


if __name__ == "__main__":
    main()
