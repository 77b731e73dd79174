"""Tables of the diagnosis (errors.md sections 4 and 5), so that a changed rule is one line."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from rankfall.model import Evidence
from rankfall.model.exit_codes import SIGNALLED

# Slugs that bystanders also print: the cause only if no other subject has one.
WEAK_PRIMARIES: Final = frozenset(
    {
        "rdzv_unreachable",
        "nccl_network_unreachable",
        "nccl_system_error",
        "nccl_ib_error",
        "hostname_resolution",
        "rank_stuck",
        "slow_rank_timeout",
    }
)

# Of a checker of messages, which compares all ranks and then ends them.
_CHECKED: Final = "rank_stuck.itac"

# A general slug and the specific ones that it yields to on the same subject.
YIELDS_TO: Final = MappingProxyType(
    {
        "user_exit": frozenset({"*"}),
        "killed_unknown": frozenset({"*"}),
        "unknown": frozenset({"*"}),
        "user_code_exception": frozenset({"*"}),
        "dataloader_died": frozenset({"host_oom", "shm_exhausted", "bad_sample", "segfault", "node_oom"}),
        "nccl_system_error": frozenset({"nic_down", "shm_exhausted", "nccl_network_unreachable", "host_alloc_failed"}),
        "external_signal": frozenset({"preempted", "node_lost", "walltime_or_requeue", "cancelled"}),
        # A task that waits for the file server is blocked in the kernel too.
        "node_stuck": frozenset({"shared_fs_error"}),
        "native_abort": frozenset({"host_alloc_failed", "gpu_oom", "collective_timeout", "cuda_device_assert"}),
    }
)

# Consequences by nearness to the origin (0 = nearest).
NEAREST: Final = MappingProxyType(
    {
        "external_signal": 0,
        "dataloader_died": 1,
        "peer_lost": 2,
        "collective_timeout": 3,
        "rdzv_closed": 4,
        "nccl_system_error": 5,
        "peer_teardown": 8,
        "controller_verdict": 9,
    }
)

# Messages of ranks that waited for an absent rank.
TIMED_OUT: Final = frozenset({"collective_timeout", "rdzv_closed"})

# A time-out of a rank that waited while the first one worked alone, as main_process_first of transformers arranges it.
WAITS_FOR_FIRST: Final = "collective_timeout.first_works"

# Causes of time-outs whose text states that a rank never came, if no rank shows another cause.
_ABSENT_RANK: Final = MappingProxyType(
    {
        "collective_timeout.horovod": "rank_stuck",
        "collective_timeout.horovod_rank": "rank_stuck",
        "collective_timeout.unique_id": "rank_stuck",
        WAITS_FOR_FIRST: "slow_rank_timeout",
    }
)

# Messages of a rank that lost its peer.
LOST_PEER_SLUGS: Final = TIMED_OUT | {"peer_lost"}

# Lost connections of any socket or pipe, also to a process outside the job.
PLAIN_CONNECTIONS: Final = frozenset({"peer_lost.errno", "peer_lost.refused", "peer_lost.eof"})

# Never the cause: a controller's messages and Rankfall's kills.
NEVER_CAUSE: Final = frozenset({"controller_verdict", "peer_teardown", "teardown_noise", "gpu_app_xid"})

# Cause of a foreign signal; all others: external_signal.
SIGNAL_SLUGS: Final = MappingProxyType(
    {
        4: "native_abort",  # SIGILL
        6: "native_abort",  # SIGABRT
        7: "shm_exhausted",  # SIGBUS: suspected only
        8: "native_abort",  # SIGFPE
        9: "killed_unknown",
        11: "segfault",
        24: "deadline_exceeded",  # SIGXCPU: the process's own limit
        25: "disk_full",  # SIGXFSZ: likewise
        31: "native_abort",  # SIGSYS
    }
)

# The last line of a text, in the form of an exception without its traceback.
LAST_LINE: Final = "unknown.last_line"
OWN_CODE: Final = "user_code_exception"
# Signatures of exceptions in text that no signature recognizes: raised inside a library or without a traceback, or by
# the job's own code.
OF_LIBRARY: Final = "user_code_exception.library"
OF_OWN: Final = "user_code_exception.own"
# Fingerprint of a last line that is no exception.
LAST_ERROR: Final = "unknown:last error"
# Fingerprint of a line with a word about an end, which a job that succeeded prints too.
HINT: Final = "unknown:hint"
# A progress bar of preparing data that ran until the others' time-out.
WORKING_BAR: Final = "slow_rank_timeout.bar"
# The head of an exception of a remote task; its own traceback follows.
WRAPPER: Final = "user_code_exception.ray"
# A process group's watchdog that no longer advances: also on ranks that only wait.
WATCHDOG: Final = "rank_stuck.watchdog"
# Of the last line of a traceback without its exception.
CUT_OFF: Final = "unknown.cut_off"
# Lines of launchers about the rank that ended first: above its exception, and of any place.
ENDS_ABOVE: Final = frozenset({"unknown.spawn", "unknown.elastic_event"})
FIRST_ENDS: Final = ENDS_ABOVE | {"unknown.flux_doom", "unknown.mpi_exit", "unknown.paddle_abort", "unknown.tpu_core"}
# Likewise, but also a cause: a rank that ended all others.
ABORTED_ALL: Final = "user_exit.mpi_abort"
# Of Lightning: it then kills them.
ENDS_OTHERS: Final = "Forcefully terminating all other processes"
# A program's own call that ends all its processes.
OWN_ABORTS: Final = frozenset({ABORTED_ALL, "user_exit.mpich"})
# MPICH's row of an exit code: of a process that a signal ended the signal, which its last line names.
_HYDRA_CODE: Final = "user_exit.hydra"
# Heads of errors by which MPI ends all processes.
MPI_ABORT: Final = "unknown.mpich_abort"
# Lines without a cause that name the rank that failed.
NAMES_A_RANK: Final = frozenset(
    {
        *FIRST_ENDS,
        CUT_OFF,
        MPI_ABORT,
    }
)
# Causes in lines of an error stack without a rank, each with the signature of the stack's head. The head names the rank.
# Of MPICH and Open MPI, and of Ascend's CANN.
HEADS_OF_STACKS: Final = MappingProxyType(
    {
        "host_alloc_failed.locked": MPI_ABORT,
        "host_alloc_failed.mpich": MPI_ABORT,
        "nccl_ib_error.ofi": MPI_ABORT,
        "nccl_ib_error.ucx_none": MPI_ABORT,
        "collective_mismatch.mpi": MPI_ABORT,
        "checkpoint_corrupt.hdf5": "unknown.hdf5_head",
        "command_not_found.mpi": MPI_ABORT,
        "command_not_found.mpirun": "unknown.openmpi_rank",
        "native_abort.assert": MPI_ABORT,
        "user_code_exception.mpi_usage": MPI_ABORT,
        "unknown.mpich_provider": MPI_ABORT,
        "bad_arguments.hccl": "nccl_system_error.hccl",
        "gpu_busy.hccp": "nccl_system_error.hccl",
        "gpu_oom.hccl": "nccl_system_error.hccl",
        "nccl_ib_error.hccl": "nccl_system_error.hccl",
        "nccl_system_error.hccl_resource": "nccl_system_error.hccl",
        "nccl_version_mismatch.hccl": "nccl_system_error.hccl",
    }
)
# Lines that are printed directly before the head.
ABOVE_THEIR_HEADS: Final = frozenset({"host_alloc_failed.locked", "native_abort.assert"})
# Missing beside a displayed line without a cause; True: the line is such a one.
LACKS_OF_LINE: Final = MappingProxyType(
    {
        False: "the cause of the shown line: no signature recognizes it, or it reports only the end",
        True: "the exception of the shown traceback: the text ends before it",
    }
)

# Lines of mpirun about its process on another node, one of which names that node.
LOST_DAEMONS: Final = frozenset({"peer_lost.mpi", "peer_lost.mpi_daemon"})

# Fingerprint of a pod that was deleted while it ran.
DELETED_POD: Final = "external_signal:deleted pod"

# A rank's exchange of sizes before the first step, in which another one has none: after a time-out its consequence.
NONE_RECEIVED: Final = "collective_mismatch.ddp_none"
#: Launchers' lines about an abort, before which a program usually prints its reason.
BARE_ABORTS: Final = frozenset({"native_abort.batch", "native_abort.exit", "native_abort.signal"})

# torchrun's exception about a process that ended.
CHILD_FAILED: Final = "unknown.child_failed"
# A launcher's report of an ordinary exit code, or that a rank ended all others.
BARE_ENDS: Final = frozenset(
    {"user_exit.exit", "user_exit.two", "user_exit.mpi", *OWN_ABORTS, CHILD_FAILED, "unknown.mpi_exit", *BARE_ABORTS}
)

# Least specificity of a library's exact words.
EXACT_WORDS: Final = 60

# Exceptions of the job's own code that no signature recognizes, or of common types without a traceback: only
# suspected, but a retry seldom helps.
UNRECOGNIZED: Final = frozenset({OF_OWN, "user_code_exception.line", "user_code_exception.usage"})

# Native code still active at the exit: the process ended anyway.
AT_SHUTDOWN: Final = frozenset({"native_abort.thread_left"})

# Text that only reports a SIGBUS, or a last line: suspected, which stops no job.
SUSPECT_ONLY: Final = frozenset(
    {
        *UNRECOGNIZED,
        *AT_SHUTDOWN,
        OF_LIBRARY,
        LAST_LINE,
        WORKING_BAR,
        "gpu_nvlink.xid5",
        "nan_loss.metric",
        "killed_unknown.nanny",
        "killed_unknown.ray_worker",
        "shm_exhausted.signal",
        "shm_exhausted.faulthandler",
        "shm_exhausted.shell",
        # A code without a reason.
        "user_exit.exit",
        "user_exit.two",
        *OWN_ABORTS,
    }
)

# End of the ids of signatures of words that any program uses: suspected.
WORDING: Final = ".wording"

# A launcher's reports of an abort, without its reason.
ABORT_REPORTS: Final = frozenset({"native_abort.exit", "native_abort.signal"})

# Aborts that follow a complaint of a collective's watchdog.
WATCHDOG_ABORTS: Final = frozenset({"native_abort.terminate", "native_abort.terminate_any"})
# Reports of any abort: a watchdog's only after its complaint.
ABORTS: Final = frozenset({"native_abort.handler", "native_abort.faulthandler", "native_abort.shell"})

# Of a rank that complained of the others before.
ENDS_OF_WAITS: Final = WATCHDOG_ABORTS | ABORTS | ABORT_REPORTS

# Mismatches that a receiver reports about one sender: either may be the odd one.
BETWEEN_TWO: Final = frozenset({"collective_mismatch.gloo", "collective_mismatch.nccl_truncated"})

# How a user or the batch system ends what an exception left: no cause after it.
ENDS_OF_THE_REST: Final = frozenset({"cancelled", "external_signal", "preempted", "walltime_or_requeue"})

# Software that lacks something on every node: no retry helps, and no node is suspect.
BUILDS: Final = frozenset({"no_gpu_visible.build"})
# Causes and signatures that a text alone, without its nodes, shows for the image or the job.
IMAGES: Final = frozenset({"driver_too_old", "no_gpu_visible.ordinal"})

# A child's death, reported by the process that needed it.
CHILD_DEATHS: Final = frozenset(
    {"dataloader_died.sigkill", "killed_unknown.nanny", "dataloader_died.pool", "killed_unknown.ray_worker"}
)

# Reports by a supervisor that knows no more than that the process ended or hung: the process's messages come first.
SEEN_FROM_OUTSIDE: Final = frozenset({"killed_unknown.nanny", "killed_unknown.ray_worker", "rank_stuck.killed"})

# Likewise by a shell, which stops no other process: no launcher's end of the rest.
DEATHS: Final = CHILD_DEATHS | {"killed_unknown.shell"}

# Slurm took the step away; all its lines about a step's end.
STEP_TAKEN: Final = frozenset(
    {"node_lost.slurm", "node_lost.srun", "preempted.slurm", "walltime_or_requeue.requeue", "walltime_or_requeue.slurm"}
)
STEP_ENDS: Final = STEP_TAKEN | {"cancelled.scancel", "cancelled.slurm", "cancelled.slurm_job", "peer_teardown.srun"}

# Kernel and node messages. In a job's output they override no cause and affect no node.
KERNEL_SIGNATURE_IDS: Final = frozenset(
    {
        "gpu_fallen_off_bus.xid",
        "gpu_fallen_off_bus.text",
        "gpu_fallen_off_bus.smi",
        "gpu_ecc.xid",
        "gpu_ecc_contained.xid",
        "gpu_nvlink.xid",
        "gpu_nvlink.xid5",
        "gpu_nvlink.xid5_fatal",
        "gpu_nvlink.sxid",
        "gpu_gsp_timeout.xid",
        "gpu_slow.throttle",
        "no_gpu_visible.xid",
    }
)

# Cause of an exit code without other explanation.
EXIT_SLUGS: Final = MappingProxyType({126: "permission_denied", 127: "command_not_found", 138: "retryable_exception"})

# Causes that a code or signal alone may give.
CAUSES_OF_CODES: Final = frozenset(
    {*EXIT_SLUGS.values(), *SIGNAL_SLUGS.values(), "external_signal", "host_oom", "unknown", "user_exit"}
)

# Of torchrun's agent.
SIGNAL_OF_AGENT: Final = "external_signal.signal_exception"

# Of its stop, before it stops its ranks: a signal from outside.
STOP_OF_AGENT: Final = "external_signal.torchrun_death"
# Of launchers that a signal stopped.
STOPS_OF_LAUNCHERS: Final = frozenset({STOP_OF_AGENT, "external_signal.mpirun"})

# A process causes these ends itself: equivalent to a message.
OWN_FAULT_SIGNALS: Final = frozenset({4, 6, 7, 8, 11, 24, 25, 31})
# Those that no exception handler sends: SIGABRT may end a process that printed its exception.
CRASH_SIGNALS: Final = OWN_FAULT_SIGNALS - {6}

# A slot does not start; for several slots it is one fault.
NEVER_STARTED: Final = frozenset(
    {"image_pull", "container_config", "volume_mount", "unschedulable", "admission_rejected"}
)

# The job's fault if all nodes report it, else the node's.
NODE_FAULT_WHEN_SINGLE: Final = frozenset({"image_pull"})

# Actions at the reported time; a lost node is detected late.
TAKEN_AWAY: Final = frozenset({"preempted", "pod_evicted"})

# Faults that affect any process on a node: by family, or by cause.
NODE_FAMILIES: Final = frozenset({"gpu", "network", "storage"})
NODE_CAUSES: Final = frozenset({"node_lost", "node_stuck", "node_oom"})
# Sources about the node itself, never a rank.
NODE_SOURCES: Final = frozenset({"node", "event", "kernel", "pod"})

# Sources that a job cannot forge.
TRUSTED: Final = frozenset({"kernel", "platform", "wrapper", "supervisor"})

WORK_DONE: Final = frozenset({"teardown", "done"})

# Their libraries print details before a less specific exception.
SAME_FAULT: Final = frozenset({"network", "gpu", "memory", "storage"})

# Exceptions that a lost peer may cause.
ECHO_TYPES: Final = (
    "RuntimeError",
    "OSError",
    "IOError",
    "Connection",
    "BrokenPipeError",
    "EOFError",
    "TimeoutError",
    "socket.",
    "ssl.",
    "asyncio.",
    "concurrent.",
    "multiprocessing.",
    "torch.",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "DistError",
    "jax",
    "grpc.",
    "ray.",
)

# Maximum seconds between a line and the end that it explains.
TERMINAL_WINDOW_S: Final = 30.0


def reports_code(piece: Evidence) -> bool:
    """True for a line that reports nothing but an exit code that a process chose."""
    code = piece.exit_code
    chosen = code is not None and (0 < code < SIGNALLED or code > SIGNALLED + 64)
    return piece.source == "log" and not piece.whole and chosen


def is_weak(piece: Evidence) -> bool:
    """True for a primary cause that ranks also report if another one failed."""
    return piece.slug in WEAK_PRIMARIES and piece.signature != _CHECKED


def called_abort(pieces: Iterable[Evidence]) -> bool:
    """True if a program called what ends all its processes: its own decision, whatever the code."""
    return any(piece.signature in OWN_ABORTS for piece in pieces)


def without_hydra_code(pieces: list[Evidence]) -> list[Evidence]:
    """Pieces without MPICH's row of an exit code, if a line names the signal that ended a process."""
    named = any(" EXIT STRING: " in piece.line for piece in pieces)
    return [piece for piece in pieces if not named or piece.signature != _HYDRA_CODE]


def waited(piece: Evidence) -> bool:
    """True for a consequence whose rank waited for another one: a time-out, or no id of NCCL without the reason."""
    return piece.role != "context" and (piece.slug == "collective_timeout" or piece.signature == "peer_lost.unique_id")


def named_after(piece: Evidence | None) -> str:
    """Cause of a verdict that only a consequence supports."""
    return "unknown" if piece is None else _ABSENT_RANK.get(piece.signature or "", piece.slug)


def signal_slug(number: int) -> str:
    """Slug of a foreign signal."""
    return SIGNAL_SLUGS.get(number, "external_signal")


def exit_slug(code: int) -> str:
    """Slug of a bare exit code other than 0."""
    return EXIT_SLUGS.get(code, "user_exit")
