"""The faults: what happens to which rank, and what has to be said about it. Data only; ``run.py`` carries it out.

Each row says what its rank, slug, victims and retry are. ``weak`` slugs are true but say less; they count as weak, everything else as wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Launcher = Literal["static", "c10d", "plain"]
# What can be done to a job anywhere, and what only a cluster does (``cluster_table.py``).
Inject = Literal["signal", "oom", "tmpfs", "busy_port", "small_shm", "clock"]
ClusterInject = Literal[
    "deadline_of_pod",
    "delete_job",
    "delete_pod",
    "disk_limit",
    "drain",
    "evict",
    "image_on_one_node",
    "kill_container",
    "kubelet_away",
    "late_names",
    "limit",
    "missing_config",
    "missing_folder",
    "no_such_claim",
    "node_clock",
    "node_down",
    "preempt",
    "probe",
    "quota",
    "refuse_job",
    "refuse_pods",
    "suspend",
    "taint",
    "take_away",
]
Outcome = Literal["failed", "succeeded", "deleted", "cancelled"]
USER = frozenset({"no"})
CRASH = frozenset({"once", "yes", "elsewhere"})
ANY = frozenset({"no", "once", "yes", "elsewhere"})


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        actions: for the worker; ``when`` is import, init, a step or teardown.
        rank: of the culprit on 2 nodes x 2 ranks; None = no single rank is (all ranks, or a node's agent).
        slot: of the culprit, where that is what can be said.
        slugs: right answers; more than one only where they are truly equal.
        weak: true, but less than what could be known.
        victims: that all other ranks have to be named as consequences.
        retry: answers that are allowed; a wrong one is worse than unknown.
        node_action: what may be done to the node.
        inject: what is done from outside, with its arguments.
        plan: other fields of the worker's plan.
        policies: of the job spec.
        fields: of the job file, over those of all.
        outcome: how the run ends.
        causes: slugs of the attempts before the last one.
        core: one of those that the covering part takes the first of each kind from.
    """

    name: str
    actions: tuple[dict[str, Any], ...]
    slugs: tuple[str, ...]
    rank: int | None = 2
    slot: int | None = None
    weak: tuple[str, ...] = ()
    victims: bool = True
    retry: frozenset[str] = USER
    node_action: Literal["none", "suspect", "taint"] = "none"
    inject: Inject | ClusterInject | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    outcome: Outcome = "failed"
    causes: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    module: bool = False
    launchers: tuple[Launcher, ...] = ("static", "c10d", "plain")
    core: bool = False
    hook_free: bool = False

    @property
    def decides_all(self) -> bool:
        """Whether every rank is struck by itself."""
        return self.rank is None and self.slot is None


def at(when: int | str, do: str, *, ranks: tuple[int, ...] | None = (2,), **more: Any) -> dict[str, Any]:
    """One action; by default of rank 2."""
    return {"when": when, "do": do, "ranks": ranks} | more


def raising(name: str, *, when: int | str = 10, ranks: tuple[int, ...] | None = (2,), **more: Any) -> dict[str, Any]:
    """An uncaught exception."""
    return at(when, "raise", ranks=ranks, type=name, **more)


USER_CODE = ("user_code_exception",)
EXITED = ("user_exit",)
LATE = {"steps": 600}

# What a rank prints and survives.
FALLS_BACK = "ERROR:root:CUDA out of memory. Tried to allocate 2.00 GiB; falling back to CPU"

EXCEPTIONS = (
    Fault(
        "exception-key",
        (raising("KeyError", text="token_type_ids"),),
        USER_CODE,
        weak=EXITED,
        core=True,
        hook_free=True,
    ),
    Fault("exception-index", (raising("IndexError", text="list index out of range"),), USER_CODE, weak=EXITED),
    Fault("exception-zero-division", (raising("ZeroDivisionError", text="division by zero"),), USER_CODE, weak=EXITED),
    Fault(
        "exception-value-rank0",
        (raising("ValueError", text="bad length -1", ranks=(0,)),),
        USER_CODE,
        rank=0,
        weak=EXITED,
        core=True,
    ),
    Fault("exception-assert", (raising("AssertionError", text="batch is empty"),), USER_CODE, weak=EXITED),
    Fault(
        "exception-attribute",
        (raising("AttributeError", text="'NoneType' object has no attribute 'shape'"),),
        USER_CODE,
        weak=EXITED,
    ),
    Fault("exception-stop-iteration", (raising("StopIteration"),), USER_CODE, weak=EXITED),
    Fault(
        "exception-chained",
        (raising("RuntimeError", text="step failed", cause="KeyError", cause_text="lr"),),
        USER_CODE,
        weak=EXITED,
        core=True,
    ),
    Fault(
        "exception-group", (raising("ExceptionGroup", text="two samples failed"),), USER_CODE, weak=EXITED, core=True
    ),
    Fault("exception-unprintable", (raising("Unprintable"),), USER_CODE, weak=EXITED, core=True),
    Fault("exception-surrogate", (raising("ValueError", text="bad name \udcff\udc80"),), USER_CODE, weak=EXITED),
    Fault(
        "exception-in-thread", (at(10, "thread", type="KeyError", text="shard_17"),), USER_CODE, weak=EXITED, core=True
    ),
    Fault(
        "exception-at-exit",
        (at("import", "atexit", type="ValueError", text="cannot close the log"),),
        (),
        rank=None,
        outcome="succeeded",
    ),
    Fault(
        "exception-before-init",
        (raising("KeyError", when="init", text="MODEL_DIR"),),
        USER_CODE,
        weak=EXITED,
        core=True,
        plan={"timeout": 15},
    ),
    Fault(
        "exception-after-success",
        (raising("RuntimeError", when="teardown", text="cannot upload metrics"),),
        USER_CODE,
        weak=EXITED,
        core=True,
    ),
    Fault(
        "exception-on-all",
        (raising("ValueError", ranks=None, text="unknown dtype int3"),),
        USER_CODE,
        rank=None,
        victims=False,
        weak=EXITED,
        core=True,
        hook_free=True,
    ),
    Fault(
        "permission",
        (raising("PermissionError", args=[13, "Permission denied", "/data/index.bin"]),),
        ("permission_denied",),
        retry=ANY,
        weak=(*USER_CODE, *EXITED),
    ),
    Fault("recursion", (at(10, "recurse"),), USER_CODE, weak=EXITED),
    Fault("exception-input", (raising("EOFError", text="EOF when reading a line"),), USER_CODE, weak=EXITED),
    Fault("tool-missing", (at(10, "command", argv=["nvcc-nine", "--version"]),), ("command_not_found",), weak=EXITED),
    Fault(
        "line-long-before",
        (at(2, "print", ranks=(0,), text=FALLS_BACK), raising("KeyError", text="rope_theta")),
        USER_CODE,
        weak=EXITED,
    ),
    Fault("memory-error", (raising("MemoryError"),), ("host_alloc_failed",), weak=(*USER_CODE, *EXITED), core=True),
    Fault(
        "import-missing",
        (at("import", "import", module="flash_attention_nine", ranks=None),),
        ("import_error",),
        rank=None,
        victims=False,
        weak=EXITED,
        core=True,
    ),
    Fault(
        "import-syntax",
        (at("import", "import", module="broken_model", source="def forward(x:\n    return x\n", ranks=None),),
        ("import_error",),
        rank=None,
        victims=False,
        weak=EXITED,
    ),
    Fault(
        "import-one-rank",
        (at("import", "import", module="flash_attention_nine"),),
        ("import_error",),
        weak=EXITED,
        plan={"timeout": 15},
    ),
    Fault(
        "arguments",
        (at("import", "arguments", ranks=None),),
        ("bad_arguments",),
        rank=None,
        victims=False,
        weak=EXITED,
        core=True,
    ),
    Fault(
        "module-missing",
        (),
        ("entrypoint_missing", "import_error"),
        rank=None,
        victims=False,
        weak=EXITED,
        command=("no_such_package.train",),
        module=True,
        core=True,
    ),
)

EXITS = (
    Fault("exit-3", (at(10, "exit", code=3),), EXITED, core=True, hook_free=True),
    Fault("exit-text", (at(10, "exit", code="no data for rank 2"),), EXITED),
    Fault("os-exit-4", (at(10, "os_exit", code=4),), EXITED, core=True),
    Fault("exit-on-all", (at(10, "os_exit", code=5, ranks=None),), EXITED, rank=None, victims=False),
    Fault(
        "keyboard-interrupt",
        (raising("KeyboardInterrupt"),),
        ("user_code_exception", "user_exit", "external_signal"),
        retry=ANY,
    ),
    Fault("leaves-early", (at(10, "leave"),), ("uneven_data",), core=True, hook_free=True, weak=("rank_stuck",)),
)


def _inside(number: int, slugs: tuple[str, ...], name: str, **more: Any) -> Fault:
    return Fault(f"signal-inside-{name}", (at(10, "signal", number=number),), slugs, retry=CRASH, **more)


def _outside(number: int, slugs: tuple[str, ...], name: str, **more: Any) -> Fault:
    return Fault(
        f"signal-outside-{name}",
        (at(10, "mark"),),
        slugs,
        retry=CRASH,
        inject="signal",
        arguments={"number": number, "to": "pid", "rank": 2},
        plan=LATE,
        **more,
    )


OUTER = ("external_signal",)
SIGNALS = (
    _outside(9, ("killed_unknown",), "kill", core=True, hook_free=True),
    _outside(15, OUTER, "term", core=True, weak=("peer_teardown",)),
    _outside(11, ("segfault",), "segv", core=True),
    _outside(6, ("native_abort",), "abrt"),
    _outside(7, ("shm_exhausted",), "bus", core=True, weak=("native_abort", "segfault")),
    _outside(4, ("native_abort",), "ill"),
    _outside(8, ("native_abort",), "fpe"),
    _outside(2, OUTER, "int", weak=("user_code_exception", "user_exit")),
    _outside(1, OUTER, "hup", core=True),
    _outside(10, OUTER, "usr1"),
    _inside(9, ("killed_unknown",), "kill"),
    _inside(15, OUTER, "term"),
    _inside(6, ("native_abort",), "abrt"),
    _inside(1, OUTER, "hup"),
    Fault("null-pointer", (at(10, "null"),), ("segfault",), retry=CRASH, core=True, hook_free=True),
    Fault("abort-rank0", (at(10, "abort", ranks=(0,)),), ("native_abort",), rank=0, retry=CRASH, core=True),
    Fault(
        "agent-term",
        (at(10, "mark"),),
        OUTER,
        rank=None,
        slot=1,
        victims=False,
        retry=CRASH,
        inject="signal",
        arguments={"number": 15, "to": "ppid", "rank": 2},
        plan=LATE,
        launchers=("static", "c10d"),
        core=True,
    ),
    Fault(
        "agent-killed",
        (at(10, "mark"),),
        ("killed_unknown",),
        rank=None,
        slot=1,
        victims=False,
        retry=CRASH,
        inject="signal",
        arguments={"number": 9, "to": "ppid", "rank": 2},
        plan=LATE,
        launchers=("static", "c10d"),
        core=True,
        hook_free=True,
    ),
    Fault(
        "wrapper-killed",
        (at(10, "mark"),),
        ("killed_unknown",),
        weak=("node_lost",),
        rank=None,
        slot=1,
        victims=False,
        retry=CRASH,
        inject="signal",
        arguments={"number": 9, "to": "wrapper", "rank": 2},
        plan=LATE,
        core=True,
    ),
)

MACHINE = (
    Fault(
        "cgroup-oom",
        (at(10, "allocate", mib=2000, ask=True),),
        ("host_oom",),
        retry=USER,
        inject="oom",
        arguments={"rank": 2, "room_mib": 120},
        plan=LATE,
        core=True,
        hook_free=True,
    ),
    Fault("disk-full", (at(10, "fill"),), ("disk_full",), weak=(*USER_CODE, *EXITED), inject="tmpfs", core=True),
    Fault(
        "port-taken",
        (at(10, "bind"),),
        ("address_in_use",),
        weak=(*USER_CODE, *EXITED),
        retry=ANY,
        inject="busy_port",
        core=True,
    ),
    Fault(
        "port-taken-store",
        (at("init", "bind", store=True),),
        ("address_in_use",),
        weak=EXITED,
        retry=ANY,
        inject="busy_port",
        plan={"timeout": 15},
    ),
    Fault(
        "loader-child-killed",
        (at(10, "loader", child="killed"),),
        # A child that somebody killed: both say so, neither can know who.
        ("dataloader_died", "killed_unknown"),
        weak=(*USER_CODE, *EXITED),
        retry=ANY,
        core=True,
    ),
    Fault(
        "loader-child-raises",
        (at(10, "loader", child="raises"),),
        (*USER_CODE, "bad_sample"),
        weak=(*EXITED, "dataloader_died"),
    ),
    Fault(
        "shm-too-small",
        (at(10, "loader", child="large"),),
        ("shm_exhausted",),
        weak=("dataloader_died", *USER_CODE, *EXITED),
        retry=ANY,
        inject="small_shm",
        core=True,
    ),
)

# Long enough for the slowest import of torch on a busy machine.
QUIET = {"hang_timeout_s": 15.0}
HANGS = (
    Fault(
        "hang-with-timeout",
        (at(10, "hang"),),
        ("rank_stuck",),
        weak=("collective_timeout", "slow_rank_timeout", "peer_lost"),
        retry=CRASH,
        plan={"timeout": 6},
        core=True,
    ),
    Fault(
        "hang-silent",
        (at(10, "hang"),),
        ("rank_stuck",),
        weak=("collective_timeout",),
        retry=CRASH,
        plan={"timeout": 600},
        policies=QUIET,
        core=True,
        hook_free=True,
    ),
    Fault(
        "hang-spinning",
        (at(10, "spin"),),
        ("rank_stuck",),
        weak=("collective_timeout",),
        retry=CRASH,
        plan={"timeout": 600},
        policies=QUIET,
    ),
    Fault(
        "hang-before-rendezvous",
        (at("init", "hang"),),
        ("rank_stuck",),
        weak=("rdzv_unreachable", "rdzv_closed", "collective_timeout", "peer_lost"),
        retry=CRASH,
        plan={"timeout": 8},
        core=True,
    ),
    Fault(
        "mismatch-size",
        (at(10, "mismatch", how="size"),),
        ("collective_mismatch",),
        weak=("peer_lost", "collective_timeout", "native_abort", *USER_CODE),
        retry=ANY,
        plan={"timeout": 8},
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        victims=False,
        core=True,
    ),
    Fault(
        "mismatch-operation",
        (at(10, "mismatch", how="operation"),),
        ("collective_mismatch",),
        weak=("peer_lost", "collective_timeout", *USER_CODE),
        retry=ANY,
        plan={"timeout": 8},
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        victims=False,
    ),
)

STALE = (
    '{"message": {"message": "KeyError: stale", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1600000000"}}}'
)


def _error_file(name: str, text: str, *, times: int = 1, core: bool = False) -> Fault:
    return Fault(
        f"error-file-{name}",
        (at(10, "error_file", text=text, times=times), at(10, "os_exit", code=7)),
        EXITED,
        retry=USER,
        launchers=("static", "c10d"),
        core=core,
    )


OTHERS = (
    _error_file("empty", "", core=True),
    _error_file("cut", '{"message": {"mess', core=True),
    _error_file("list", "[1, 2]"),
    _error_file("no-message", "{}"),
    _error_file("huge", "x" * 1024, times=50_000, core=True),
    Fault(
        "error-file-stale",
        (at("import", "error_file", text=STALE, ranks=(1,)), at(10, "os_exit", code=7)),
        EXITED,
        launchers=("static", "c10d"),
        core=True,
    ),
    Fault(
        "clock-ahead",
        (raising("KeyError", text="vocab"),),
        USER_CODE,
        weak=EXITED,
        inject="clock",
        arguments={"slot": 1, "seconds": 90, "spares": "torch.distributed.run"},
        core=True,
    ),
    Fault(
        "clock-behind",
        (raising("KeyError", text="vocab"),),
        USER_CODE,
        weak=EXITED,
        inject="clock",
        arguments={"slot": 0, "seconds": -90, "spares": "torch.distributed.run"},
        core=True,
    ),
    Fault(
        "mark-retryable",
        (raising("Retryable", text="feature store is away"),),
        ("retryable_exception",),
        retry=frozenset({"yes"}),
        policies={"max_restarts": 1},
        outcome="succeeded",
        causes=("retryable_exception",),
        launchers=("static", "plain"),
        core=True,
    ),
    Fault(
        "mark-final", (raising("Final", text="config is wrong"),), USER_CODE, retry=USER, policies={"max_restarts": 1}
    ),
    Fault(
        "mark-by-name",
        (raising("StoreUnavailable", text="503"),),
        ("retryable_exception",),
        weak=USER_CODE,
        retry=frozenset({"yes"}),
        policies={"retryable": ["__main__.StoreUnavailable"]},
    ),
    Fault("exit-138", (at(10, "os_exit", code=138),), ("retryable_exception",), retry=frozenset({"yes"})),
    Fault(
        "different-by-attempt",
        (at(10, "signal", number=9), raising("KeyError", text="second", ranks=(1,), attempts=[2])),
        USER_CODE,
        rank=1,
        weak=EXITED,
        policies={"max_restarts": 2},
        causes=("killed_unknown",),
        core=True,
    ),
    Fault(
        "forged-line",
        (
            at(5, "print", ranks=(1,), text="NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."),
            raising("KeyError", text="vocab"),
        ),
        USER_CODE,
        weak=EXITED,
        core=True,
    ),
)

FAULTS: tuple[Fault, ...] = (*EXCEPTIONS, *EXITS, *SIGNALS, *MACHINE, *HANGS, *OTHERS)

# (fault, launcher or "all") where nothing in the world tells more, each with the reason. Everything else must be right.
ALLOWED_LESS: dict[tuple[str, str], str] = {}
