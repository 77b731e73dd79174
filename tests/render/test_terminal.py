from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import Alternative, Cause, Consequence, Decision, Decisive, Proof, Time, Verdict, catalogue
from rankfall.model.verdict import HANG
from rankfall.render.summary import action_text, advice, advice_text, summary
from rankfall.render.verdict import Details, next_commands, render_brief, render_verdict
from rankfall.verdict.diagnose import diagnose
from support.cases import case, died, left, piece

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
ValueError: loss is not finite"""
SGR = re.compile(r"\x1b\[[0-9;]*m")


def fallen(**fields: object) -> Verdict:
    found = diagnose(
        case(
            [left(0, 1, seconds=1.2), left(1, 1, seconds=1.2), left(2, 1), died(3, 15, by="agent")],
            [
                piece("user_code_exception", 2, line=TRACEBACK),
                piece("peer_lost", 1, role="secondary", seconds=1.1),
                piece("peer_lost", 0, role="secondary", seconds=1.1),
            ],
        )
    ).verdict
    return msgspec.structs.replace(found, **fields)


def proof(line: str, *, where: str = "x") -> Proof:
    return Proof(
        id=line[:8], source="log", slug="unknown", role="primary", rank=1, slot=0, node="n", at=None, uncertainty_s=None,
        where=where, line=line, trust="job",
    )  # fmt: skip


def test_errors_s10_the_first_lines_answer() -> None:
    stop = Decision(action="stop", rule="user_error", because="a proven user error does not go away", state="done")
    lines = render_verdict(fallen(decision=stop)).split("\n")
    assert lines[:3] == [
        "Rank 2 on node1 raised ValueError; 3 other ranks failed or were stopped because of it. Not",
        "restarted: a proven user error does not go away.",
        "",
    ]
    assert lines[3:9] == [
        "run     job-abc123, attempt 1, failed",
        "rank    2 (local rank 0, slot 1)",
        "node    node1",
        "cause   Python exception in training code (user_code_exception, proven)",
        "action  stop: a proven user error does not go away",
        "",
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cause": Cause.of("gpu_oom", confidence="likely")}, "ran out of CUDA memory, probably as the first failure; 3 other"),
        ({"cause": Cause.of("host_oom", confidence="likely")}, "Rank 2 on node1 was probably killed because a memory"),
        ({"cause": Cause.of("gpu_oom", confidence="suspected")}, "ran out of CUDA memory, which may be the first failure; 3"),
        ({"cause": Cause.of("killed_unknown", confidence="likely")}, "Rank 2 on node1 was killed by SIGKILL from an"),
        ({"cause": Cause.of("nic_down", confidence="suspected")}, "Suspected: rank 2 on node1 lost its network adapter"),
        ({"cause": Cause.of("nic_down", confidence="likely")}, "Rank 2 on node1 probably lost"),
        ({"decisive": Decisive(source="log", where="a:1", line="[default1]: [rank1]: torch.cuda.OutOfMemoryError: no")},
         "raised OutOfMemoryError"),
        ({"cause": Cause.of("rank_stuck", confidence="proven"), "rank": None, "scope": "all"},
         "All ranks that were not stopped before hang;"),
        ({"cause": Cause.of("host_oom", confidence="proven"), "rank": None, "scope": "all", "consequences": ()},
         "All ranks were killed"),
        ({"cause": Cause.of("image_pull", confidence="proven"), "rank": None, "scope": "slot"}, "Slot 1 on node1 could"),
        ({"cause": Cause.of("cancelled", confidence="proven"), "rank": None, "scope": "external"}, "The job was cancelled"),
        ({"cause": Cause.of("disk_full", confidence="proven"), "rank": None, "scope": None}, "An unknown rank ran out"),
        ({"cause": Cause.of("unknown", confidence="unknown"), "rank": None}, "The job failed; no recorded evidence"),
        ({"consequences": (Consequence(rank=1, slug="peer_lost", because=""),)}, "ValueError; 1 other rank failed because"),
        ({"consequences": (Consequence(rank=1, slug="peer_teardown", because=""),)}, "1 other rank was stopped because"),
        ({"consequences": ()}, "Rank 2 on node1 raised ValueError."),
        ({"decision": Decision(action="retry", rule="r", because="", left=1)}, "because of it. Restarting (1 restart left)."),
        ({"decision": Decision(action="retry_elsewhere", rule="r", because="", state="done")},
         "because of it. Restarted on another node."),
        ({"state": "succeeded", "cause": Cause.of("unknown", confidence="unknown"), "evidence": ()},
         "Run job-abc123 succeeded."),
        ({"state": "succeeded", "cause": Cause.of("unknown", confidence="unknown"), "evidence": (proof("KeyError: 3"),)},
         "Run job-abc123 succeeded, although rank 1 raised KeyError."),
    ],
)  # fmt: skip
def test_the_first_sentence_is_one_that_a_colleague_would_say(fields: dict[str, object], text: str) -> None:
    assert text in summary(fallen(**fields))


def test_the_step_of_the_rank_is_part_of_the_sentence() -> None:
    assert "Rank 2 on node1 raised ValueError in step 110; 3 other" in summary(fallen(), step=110)


def test_every_cause_makes_a_sentence_for_each_subject() -> None:
    for slug in catalogue():
        for scope, rank in (
            ("rank", 2),
            ("all", None),
            ("slot", None),
            ("node", None),
            ("external", None),
            (None, None),
        ):
            for confidence in ("proven", "likely", "suspected", "unknown"):
                cause = Cause.of(slug, confidence=confidence)  # type: ignore[arg-type]
                text = summary(fallen(cause=cause, scope=scope, rank=rank, decision=None))
                assert re.fullmatch(r"[A-Z][^\n]*[a-zA-Z0-9)]\.", text), text
                assert "All ranks was" not in text


def test_the_evidence_names_source_time_and_place_and_the_decisive_line_is_whole() -> None:
    text = render_verdict(fallen())
    assert "Evidence  2026-09-21, times in UTC" in text
    assert re.search(r"\d\d:\d\d:\d\d\.000  record  rank 2  records/user_code_exception-2\.json", text)
    assert "      ValueError: loss is not finite" in text
    assert "      Traceback (most recent call last):" in text


def test_the_place_where_it_was_raised_stands_below_the_decisive_line() -> None:
    frames = ("train.py:88 in step", "evil\x1b]0;x\x07.py:1 in main")
    text = render_verdict(fallen(), details=Details(frames=frames))
    assert (
        "ValueError: loss is not finite\n        at train.py:88 in step\n        at evil\\x1b]0;x\\x07.py:1 in main\n"
        in text
    )
    assert render_brief(fallen(), details=Details(frames=frames)).endswith("\n        at train.py:88 in step")


def test_consequences_are_counted_and_named() -> None:
    assert "3 other ranks failed or stopped as a consequence: 0, 1, 3 (peer_lost, peer_teardown)" in render_verdict(
        fallen()
    )


def test_the_end_says_what_to_type() -> None:
    lines = render_verdict(fallen()).split("\n")
    assert lines[-2:] == [
        "  $ rankfall logs job-abc123 --attempt 1 --rank 2 --tail 50",
        "  $ rankfall why job-abc123 --attempt 1 -o json",
    ]


def test_unknown_says_so_and_lists_what_is_missing_first() -> None:
    verdict = Verdict(
        run="job-abc123", attempt=1, state="failed", cause=Cause.of("unknown", confidence="unknown"),
        missing=("the logs of rank 3", "kernel log: not permitted"), evidence=(proof("noise"),),
    )  # fmt: skip
    text = render_verdict(verdict)
    assert "rank    unknown" in text
    assert "node    unknown" in text
    assert "cause   unknown: no recorded evidence explains the failure" in text
    assert text.index("Unknown\n  the logs of rank 3") < text.index("Evidence")


def test_a_suspicion_is_called_one() -> None:
    verdict = fallen(cause=Cause.of("peer_lost", confidence="suspected"))
    assert "(peer_lost, only suspected)" in render_verdict(verdict)


def test_a_fault_of_all_ranks_blames_none() -> None:
    text = render_verdict(fallen(scope="all", rank=None, node=None, slot=None))
    assert "rank    all: each has the same failure" in text
    assert "node    none in particular" in text


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_nothing_wrong_is_no_riddle(state: str) -> None:
    verdict = Verdict(
        run="job-abc123", attempt=1, state=state, cause=Cause.of("unknown", confidence="unknown"), missing=("a failure",)
    )  # fmt: skip
    text = render_verdict(verdict)
    assert "cause   none" in text
    assert "unknown" not in text.lower()


def test_files_have_no_run() -> None:
    text = render_verdict(fallen(run=None, attempt=None), source="logs/")
    assert "\n\nrun     none; input: logs/\n" in text
    assert "action  none: the input is files" in text
    assert next_commands(fallen(run=None)) == ()


def test_files_without_a_known_failure_are_not_called_a_failed_job() -> None:
    nothing = {
        "run": None,
        "attempt": None,
        "rank": None,
        "node": None,
        "slot": None,
        "scope": None,
        "consequences": (),
    }
    unknown = Cause.of("unknown", confidence="unknown")
    text = render_verdict(fallen(**nothing, cause=unknown, evidence=(), decisive=None, missing=("any log file",)))
    assert text.startswith("No failure was found in the files.\n")
    assert "cause   none found" in text
    assert "If the job failed, its errors are elsewhere" in text
    assert "any log file" in text
    text = render_verdict(fallen(**nothing, cause=unknown))
    assert text.startswith("No known failure was found in the files; the shown line may belong to one.")
    assert "job failed;" not in text
    assert "The job failed;" in render_verdict(fallen(**nothing | {"run": "train-608d43"}, cause=unknown))


def test_a_hang_without_a_known_rank_is_called_one() -> None:
    unknown = Cause.of("unknown", confidence="unknown")
    missing = ("a start of ranks 0, 1", f"{HANG}no progress for 5 s\x1b[2J")
    found = fallen(rank=None, scope=None, node=None, cause=unknown, consequences=(), missing=missing)
    assert summary(found).startswith("The job hung: no progress for 5 s")
    assert "\x1b" not in summary(found)


def test_a_pod_is_named_with_its_node() -> None:
    assert "pod     trainer-0 on node1" in render_verdict(fallen(pod="trainer-0"))


def test_rejected_alternatives_tell_why() -> None:
    other = Alternative(slug="peer_lost", rank=1, rejected="its peer's end explains it")
    text = render_verdict(fallen(alternatives=(other,) * 9))
    assert "rank 1, peer_lost: its peer's end explains it" in text
    assert "and 5 more: see -o json" in text


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (None, "none so far"),
        (Decision(action="retry", rule="r", because="", budget="total", left=2, state="done"),
         "restart (2 restarts left, budget total)"),
        (Decision(action="retry", rule="r", because="why", state="intent"), "restart: why"),
        (Decision(action="stop", rule="r", because="spent", budget="total", left=0, state="done"), "stop: spent"),
    ],
)  # fmt: skip
def test_what_was_done(decision: Decision | None, text: str) -> None:
    assert action_text(decision) == text


def test_hostile_text_of_the_job_stays_harmless() -> None:
    evil = "\x1b]0;owned\x07\u202e\r\nrun     other-000000, attempt 1, succeeded\x9b2J"
    verdict = fallen(
        node=evil, pod=evil, gpu=evil, evidence=(proof(evil, where=evil),), missing=(evil,),
        decisive=Decisive(source="log", where=evil, line=evil),
        alternatives=(Alternative(slug="peer_lost", rank=1, rejected=evil),),
        decision=Decision(action="retry", rule="r", because=evil),
    )  # fmt: skip
    text = render_verdict(verdict)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert [line for line in text.split("\n") if line.startswith("run ")] == ["run     job-abc123, attempt 1, failed"]


@given(
    line=st.text(max_size=3000),
    width=st.integers(10, 200),
    rank=st.none() | st.integers(0, 10**6),
    slug=st.sampled_from(sorted(catalogue())),
)
def test_any_verdict_can_be_shown_within_the_width(line: str, width: int, rank: int | None, slug: str) -> None:
    verdict = fallen(
        rank=rank,
        evidence=(proof(line),),
        cause=Cause.of(slug, confidence="likely"),
        consequences=(Consequence(rank=None, slug="peer_lost", because=line),),
        missing=(line,),
    )
    plain = render_verdict(verdict, width=width)
    assert SGR.sub("", render_verdict(verdict, width=width, color=True)) == plain
    assert "\x1b" not in plain
    assert "\n\n\n" not in plain
    assert summary(verdict)


def test_colour_never_reaches_over_a_line_end() -> None:
    for line in render_verdict(fallen(), width=50, color=True).split("\n"):
        opened = [match[0] for match in SGR.finditer(line)]
        assert not opened or opened[-1] == "\x1b[0m"


def test_a_brief_verdict_has_summary_labels_and_one_proof() -> None:
    lines = render_brief(fallen()).split("\n")
    assert len(lines) == 9
    assert lines[-1].strip() == "ValueError: loss is not finite"


def test_every_cause_has_advice_and_no_advice_is_left_over() -> None:
    assert set(advice()) == set(catalogue())


@pytest.mark.parametrize(
    ("slug", "line", "node", "words"),
    [
        ("rank_stuck", "rank 1 stands at train.py:7", "node1", "the rank whose stack differs"),
        ("rank_stuck", "Timed out waiting", "node1", "py-spy or PYTHONFAULTHANDLER=1 shows"),
        ("segfault", "exit code -11", "node1", "Run with PYTHONFAULTHANDLER=1"),
        ("segfault", "Fatal Python error: Segmentation fault", "node1", "Find the Python line in the stack"),
        ("disk_full", "No space left on device: '/ckpt/a'", "node1", "the named file system"),
        ("disk_full", "No space left on device", "node1", "the file systems to which the job writes"),
        ("shared_fs_error", "Stale file handle", "node1", "on the named nodes"),
        ("shared_fs_error", "Stale file handle", None, "on the nodes of the job"),
        ("address_in_use", "Address already in use", "node1", "Choose another port"),
    ],
)
def test_i23_p8_advice_names_only_what_the_verdict_has(slug: str, line: str, node: str | None, words: str) -> None:
    found = fallen(
        cause=Cause.of(slug, confidence="likely"),
        node=node,
        decision=None,
        evidence=(),
        decisive=Decisive(source="log", where="a.log:4", line=line),
    )
    assert words in " ".join(render_verdict(found).partition("Next")[2].split())


NODES = "FailedScheduling: 0/3 nodes are available: "
USELESS = " preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
BUSY = " preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
OUR_TAINT = "1 node(s) had untolerated taint {rankfall.dev/faulty: }"


@pytest.mark.parametrize(
    ("line", "happened", "words"),
    [
        (f'{NODES}persistentvolumeclaim "data" not found. not found', "claim does not exist", "Create the claim"),
        (f"{NODES}pod has unbound immediate PersistentVolumeClaims.{USELESS}", "has no volume", "its storage class"),
        (f"{NODES}1 node(s) had untolerated taint {{a: }}, 2 Insufficient nvidia.com/gpu.{USELESS}", "large enough", "waiting does not help"),
        (f"{NODES}1 node(s) didn't match Pod's node affinity/selector, 2 Insufficient cpu.{BUSY}", "on any node", "Free nodes, request less, or wait."),
        (f"{NODES}{OUR_TAINT}, 2 node(s) didn't match Pod's node affinity/selector.{USELESS}", "on any node", "rankfall nodes clear NODE"),
        (f"{NODES}{OUR_TAINT}, 2 Insufficient memory.{USELESS}", "on any node", "rankfall nodes list"),
        (f"{NODES}1 node(s) were unschedulable, 2 node(s) had untolerated taint {{a: }}.{USELESS}", "on any node", "Uncordon or repair"),
        (f"{NODES}1 node(s) had untolerated taint {{a: }}, 2 node(s) didn't match Pod's node affinity/selector.{USELESS}", "asks for", "node selector or affinity"),
        (f"{NODES}3 node(s) had untolerated taint {{dedicated: infra}}.{USELESS}", "taints", "Tolerate the taint"),
        ("SchedulingGated: Scheduling is blocked due to non-empty scheduling gates", "held by a scheduling gate", "queue that set the gate"),
        ('FailedCreate: pods "a-1" is forbidden: exceeded quota: qq, requested: cpu=1, used: cpu=1, limited: cpu=1', "was not created", "Raise the quota"),
        ("srun: error: Unable to allocate resources", "on any node", "Free nodes, request less, or wait."),
    ],
)  # fmt: skip
def test_i33_the_advice_for_a_pod_without_a_place_follows_the_platforms_words(line, happened, words) -> None:
    decisive = Decisive(source="pod", where="pod/a", line=line)
    other = proof(f"{NODES}3 Insufficient cpu.", where="pod/b")
    found = fallen(cause=Cause.of("unschedulable", confidence="proven"), decisive=decisive, evidence=(other,))
    text = " ".join(render_verdict(found).split())
    assert words in text.partition(" Next ")[2]
    assert happened in summary(found)
    created = "not created" in happened
    assert created == ("on any node" not in text and "quota" in text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ", "raise their limit"),
        ('Evicted: Container main exceeded its local ephemeral storage limit "20Mi". ', "raise their limit"),
        ('Evicted: Usage of EmptyDir volume "cache" exceeds the limit "10Mi". ', "sizeLimit"),
        ("Evicted: The node was low on resource: ephemeral-storage.", "Raise the pod's requests"),
    ],
)  # fmt: skip
def test_i33_an_eviction_at_the_pods_own_limit_is_no_pressure_of_the_node(line: str, words: str) -> None:
    decisive = Decisive(source="pod", where="pod/a", line=line)
    text = render_verdict(fallen(cause=Cause.of("pod_evicted", confidence="proven"), decisive=decisive, evidence=()))
    assert words in " ".join(text.partition("Next")[2].split())
    assert "pressure" not in text
    assert ("limit of local storage" in " ".join(text.split())) == ("exceed" in line)


@pytest.mark.parametrize("slug", ["preempted", "retryable_exception"])
@pytest.mark.parametrize("action", [None, "stop", "retry"])
def test_i33_nobody_is_told_that_a_job_starts_again_without_a_recorded_restart(slug: str, action: str | None) -> None:
    decision = Decision(action=action, rule="r", because="budget total exhausted") if action else None  # type: ignore[arg-type]
    text = render_verdict(fallen(cause=Cause.of(slug, confidence="proven"), decision=decision)).partition("Next")[2]
    assert ("No action is needed" in text) == (action == "retry")
    assert ("Start the job again" in text) == (action != "retry")


def test_a_time_that_is_not_known_is_said_to_be_unknown() -> None:
    text = render_verdict(fallen(time=Time(), evidence=(proof("boom"),)))
    assert "time unknown  log  rank 1" in text


def test_a_rank_is_ruled_out_only_where_the_cause_outside_is_proven() -> None:
    outside = {"scope": "external", "rank": None, "local_rank": None, "node": None, "slot": None}
    proven = render_verdict(fallen(cause=Cause.of("preempted", confidence="proven"), **outside))
    likely = render_verdict(fallen(cause=Cause.of("preempted", confidence="likely"), **outside))
    assert "rank    none: the cause is outside the job\nnode    none in particular" in proven
    assert "rank    unknown\nnode    unknown" in likely


def test_i23_p2_a_local_rank_is_shown_where_the_global_one_is_unknown() -> None:
    text = render_verdict(
        fallen(scope="external", rank=None, local_rank=3, slot=None, cause=Cause.of("segfault", confidence="likely"))
    )
    assert text.startswith("Local rank 3 on node1 ")
    assert "rank    unknown (local rank 3)" in text


def test_lines_before_the_decisive_one_are_shown_above_it() -> None:
    text = render_verdict(fallen(evidence=(), decisive=Decisive(source="log", where="a.log:4", line="boom")))
    assert "  log  a.log:4\n      boom" in text
    found = fallen(
        evidence=(proof("boom", where="a.log:4"),), decisive=Decisive(source="log", where="a.log:4", line="boom")
    )
    shown = render_verdict(found, details=Details(before=("one", "evil\x1b[2J")))
    assert "rank 1  a.log:4\n      one\n      evil\n      boom" in shown


def test_a_pipe_gets_evidence_and_context_whole_and_a_terminal_gets_them_cut() -> None:
    end = "failed (exitcode: 1) local_rank: 1 (pid: 142)"
    lines = [f"{word} {'x' * 40} {'y' * 60} {end}" for word in ("decisive", "second", "before")]
    found = fallen(
        evidence=tuple(proof(line, where=f"a.log:{number}") for number, line in enumerate(lines[:2])),
        decisive=Decisive(source="log", where="a.log:0", line=lines[0]),
    )
    details = Details(before=(lines[2], "evil\x1b[2J" + "z" * 2000))
    shown = render_verdict(found, details=details, width=80, cut=False)
    assert [f"      {line}" in shown.split("\n") for line in lines] == [True] * 3
    assert "\x1b" not in shown
    assert "[1004 more characters]" in shown
    for line in render_verdict(found, details=details, width=80).split("\n"):
        assert len(line) <= 80
    brief = render_brief(found, width=80, cut=False)
    assert f"      {lines[0]}" in brief.split("\n")
    alone = fallen(evidence=(), decisive=Decisive(source="log", where="a.log:4", line=lines[0]))
    assert f"      {lines[0]}" in render_verdict(alone, width=80, cut=False).split("\n")


def test_a_place_that_does_not_fit_has_its_own_line() -> None:
    text = render_verdict(fallen(evidence=(proof("boom", where="records/" + "x" * 40),)), width=60)
    assert "  time unknown  log  rank 1\n    records/xxx" in text


@pytest.mark.parametrize(
    ("line", "happened", "words"),
    [
        ("ValueError: No valid checkpoint found in output directory (out)", "a checkpoint or a model", "without one"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'out/last.ckpt'",
            "a checkpoint or a model",
            "mounted",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'conf/train.yaml'",
            "configuration",
            "relative paths",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/yaml/a.bin'", "training data", "data path"),
    ],
)
def test_the_words_about_a_missing_file_follow_its_path(line: str, happened: str, words: str) -> None:
    found = fallen(
        cause=Cause.of("dataset_missing", confidence="proven"),
        decisive=Decisive(source="record", where="r.json", line=line),
    )
    assert f"did not find {'' if 'checkpoint' in happened else 'its '}{happened}" in summary(found)
    assert words in advice_text(found)
