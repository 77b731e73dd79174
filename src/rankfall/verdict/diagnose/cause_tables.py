"""Tables of the diagnosis: which cause yields to which, what a signal or a bare exit code means.

Kept as data, so that a changed rule is one line. Facts: errors.md sections 4 and 5.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

# Primary slugs that are also what bystanders print when something else took their partner away. They are the cause
# only when no other subject has a cause of its own.
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

# A general slug and the specific ones that it yields to when they are proven on the same subject (causes.md, rules).
YIELDS_TO: Final = MappingProxyType(
    {
        "user_exit": frozenset({"*"}),
        "killed_unknown": frozenset({"*"}),
        "unknown": frozenset({"*"}),
        "user_code_exception": frozenset({"*"}),
        "dataloader_died": frozenset({"host_oom", "shm_exhausted", "bad_sample", "segfault", "node_oom"}),
        "nccl_system_error": frozenset({"nic_down", "shm_exhausted", "nccl_network_unreachable"}),
        "external_signal": frozenset({"preempted", "node_lost", "walltime_or_requeue", "cancelled"}),
        "native_abort": frozenset({"host_alloc_failed", "gpu_oom", "collective_timeout", "cuda_device_assert"}),
    }
)

# Among consequences only, which one stands nearest the origin (0 = nearest); causes.md, first rule.
NEAREST: Final = MappingProxyType(
    {
        "external_signal": 0,
        "dataloader_died": 1,
        "peer_lost": 2,
        "collective_timeout": 3,
        "rdzv_closed": 4,
        "peer_teardown": 8,
        "controller_verdict": 9,
    }
)

# What a rank says when its partner is gone.
LOST_PEER_SLUGS: Final = frozenset({"peer_lost", "collective_timeout", "rdzv_closed"})

# These words of a controller, and own kills, are never the cause of a run.
NEVER_CAUSE: Final = frozenset({"controller_verdict", "peer_teardown", "teardown_noise", "gpu_app_xid"})

# What a signal says when nobody of ours sent it and nothing else explains it. Everything else: external_signal.
SIGNAL_SLUGS: Final = MappingProxyType(
    {
        4: "native_abort",  # SIGILL
        6: "native_abort",  # SIGABRT
        7: "shm_exhausted",  # SIGBUS: suspected only
        8: "native_abort",  # SIGFPE
        9: "killed_unknown",
        11: "segfault",
        31: "native_abort",  # SIGSYS
    }
)

# Text that tells of a SIGBUS and nothing else: as the bare signal, it makes /dev/shm suspected only, and that stops no job.
SUSPECT_ONLY: Final = frozenset({"shm_exhausted.signal", "shm_exhausted.faulthandler", "shm_exhausted.shell"})

# What native code says when a process leaves that it was still at work in: the abort of a process that ended anyway.
AT_SHUTDOWN: Final = frozenset({"native_abort.thread_left"})

# Words about a child's death, spoken by the process that needed it: no launcher's words about how a rank ended.
CHILD_DEATHS: Final = frozenset({"killed_unknown.dataloader", "killed_unknown.pool", "killed_unknown.ray_worker"})

# Words of the kernel and of node tools. In a job's own output anybody can print them: there they never beat another cause and move no node.
KERNEL_SIGNATURE_IDS: Final = frozenset(
    {
        "gpu_fallen_off_bus.xid",
        "gpu_fallen_off_bus.text",
        "gpu_fallen_off_bus.smi",
        "gpu_ecc.xid",
        "gpu_ecc_contained.xid",
        "gpu_nvlink.xid",
        "gpu_nvlink.xid5_fatal",
        "gpu_nvlink.sxid",
        "gpu_gsp_timeout.xid",
        "gpu_slow.throttle",
        "no_gpu_visible.xid",
    }
)

# As SIGNAL_SLUGS for an exit code without a record or a line that explains it.
EXIT_SLUGS: Final = MappingProxyType({126: "permission_denied", 127: "command_not_found", 138: "retryable_exception"})

# Ends that a process brings on itself, whatever else was going on: as good as a message.
OWN_FAULT_SIGNALS: Final = frozenset({4, 6, 7, 8, 11, 31})

# Why a slot does not begin. What keeps several of them from it in the same words is one fault.
NEVER_STARTED: Final = frozenset(
    {"image_pull", "container_config", "volume_mount", "unschedulable", "admission_rejected"}
)

# What is the job's fault where all nodes say it, and the node's where one does while others began.
NODE_FAULT_WHEN_SINGLE: Final = frozenset({"image_pull"})

# What the platform does to a pod at the very moment that it names, so that a fall before it is none of its consequences. A lost node is noticed late.
TAKEN_AWAY: Final = frozenset({"preempted", "pod_evicted"})

# Faults of a node or of what lies around it, which strike whatever runs there: by the family of the cause, or by the cause.
NODE_FAMILIES: Final = frozenset({"gpu", "network", "storage"})
NODE_CAUSES: Final = frozenset({"node_lost", "node_stuck", "node_oom"})
# Who says so of the node itself; what a rank says of its own is not meant.
NODE_SOURCES: Final = frozenset({"node", "event", "kernel", "pod"})

# Sources that a job cannot forge.
TRUSTED: Final = frozenset({"kernel", "platform", "wrapper", "supervisor"})

# Phases of a rank whose work is done.
WORK_DONE: Final = frozenset({"teardown", "done"})

# Families whose libraries print details of a fault before they raise an exception that says less.
SAME_FAULT: Final = frozenset({"network", "gpu", "memory", "storage"})

# Types of exceptions, as text shows them, that a rank may raise because its partner is gone.
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

# How long before its subject's end a line may stand and still speak of that end, seconds.
TERMINAL_WINDOW_S: Final = 30.0


def signal_slug(number: int) -> str:
    """Slug of an end by a foreign signal."""
    return SIGNAL_SLUGS.get(number, "external_signal")


def exit_slug(code: int) -> str:
    """Slug of an end by a bare exit code other than 0."""
    return EXIT_SLUGS.get(code, "user_exit")
