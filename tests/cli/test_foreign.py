"""Jobs that Rankfall did not start, on the command line: read, followed, explained, and never changed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from cli.foreign_world import INDEX, UID, Foreigners, conditions, foreigners, job, meta
from rankfall.cli import app
from rankfall.rundir import RunDir, default_home, list_runs
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.supervisor.unattended import driver, monitor, workload_poller
from support.feeding import quicken
from support.helpers import wait_until

RUN = f"job-plain-{UID[:6]}"
TRACE = (
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "train.py", line 9, in <module>',
    "[rank3]: ValueError: bad sample 17",
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)
    monkeypatch.setattr(monitor, "_STEP_S", 0.002)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(driver, "POLL_INTERVAL_S", 0.02)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with foreigners(tmp_path) as (made, kubeconfig):
        monkeypatch.setenv("RANKFALL_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield made
        # Whatever was done: nobody asked this cluster for a change.
        assert made.world.changes == []


@pytest.fixture
def plain(cluster: Foreigners) -> tuple[Foreigners, list]:
    """An Indexed Job of two pods that print."""
    cluster.job()
    pods = [cluster.pod(number) for number in range(2)]
    for number, pod in enumerate(pods):
        cluster.write(pod, *(f"pod {number} line {n}" for n in range(3)))
    return cluster, pods


def rankfall(capsys, *words: str, code: int = 0) -> str:
    assert app.run(list(words)) == code, capsys.readouterr().err
    return capsys.readouterr().out


def test_launch_s15_a_plain_job_is_shown_by_its_pods_and_its_ranks_are_said_to_be_unknown(plain, capsys):
    cluster, pods = plain
    assert app.run(["logs", "job/plain"]) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == sorted(f"[slot {i}] pod {i} line {n}" for i in range(2) for n in range(3))
    assert "cannot match the ranks of job/plain to its pods" in err
    cluster.write(pods[0], "pod 0 line 3")
    out = rankfall(capsys, "logs", "job/plain", "--no-prefix")
    assert sorted(out.splitlines()) == sorted(
        [*(f"pod {i} line {n}" for i in range(2) for n in range(3)), "pod 0 line 3"]
    )
    status = json.loads(rankfall(capsys, "status", "job/plain", "-o", "json"))
    assert (status["run"], status["state"], status["foreign"]) == (RUN, "running", "job/plain")
    assert [(slot["pod"], slot["node"], slot["state"]) for slot in status["slots"]] == [
        ("plain-0", "n0", "running"),
        ("plain-1", "n1", "running"),
    ]
    assert "Rankfall did not start this object" in rankfall(capsys, "status", RUN)
    assert f"{RUN}  running, foreign" in rankfall(capsys, "ps")


def long_ago(run: RunDir, seconds: int = 3_600) -> None:
    """Dates the last look back."""
    for path in (run.seen_path, run.db_path):
        then = time.time() - seconds
        os.utime(path, (then, then))


def test_i33_a_job_that_was_looked_at_once_is_not_called_running(plain, capsys):
    rankfall(capsys, "logs", "job/plain")
    run = RunDir.open(default_home(), RUN)
    long_ago(run)
    line = next(line for line in rankfall(capsys, "ps").splitlines() if line.startswith(RUN))
    assert "  running, foreign, seen 1h00m ago  " in line
    said = rankfall(capsys, "metrics")
    assert f'run="{RUN}",state="unknown"}} 1' in said
    assert 'rankfall_runs{state="unknown"} 1' in said
    assert 'state="running"' not in said
    assert "rankfall_run_slots{" not in said
    # A process that watches it knows its state.
    with run.lease():
        assert f"{RUN}  running, foreign  " in rankfall(capsys, "ps")
        said = rankfall(capsys, "metrics")
        assert 'rankfall_runs{state="running"} 1' in said
        assert "rankfall_run_slots{" in said
        assert rankfall(capsys, "prune", "--older-than", "30m", "-y") == ""
    long_ago(run)
    assert rankfall(capsys, "prune", "--older-than", "2h", "-y") == ""
    assert rankfall(capsys, "prune", "--older-than", "30m", "-y").startswith(f"removed {RUN} ")
    assert list_runs(default_home()) == []


def test_i33_a_look_counts_only_if_the_cluster_answered(plain, capsys):
    cluster, _ = plain
    rankfall(capsys, "status", "job/plain")
    run = RunDir.open(default_home(), RUN)
    long_ago(run)
    before = run.last_seen()
    cluster.do(lambda made: setattr(made, "gets_refused", 403))
    assert "seen 1h00m ago" in rankfall(capsys, "status", RUN)
    assert run.last_seen() == before
    cluster.do(lambda made: setattr(made, "gets_refused", None))
    assert "seen 0" in rankfall(capsys, "status", RUN)
    assert run.last_seen() > before


def test_i33_of_a_foreign_job_nobody_is_sent_to_attach(plain, capsys, tmp_path):
    cluster, pods = plain
    cluster.write(pods[1], *TRACE)
    cluster.end(pods[1], 1)
    text = rankfall(capsys, "why", "job/plain")
    assert "attempt 1, running" in text
    assert "rankfall attach" not in text
    assert "$ rankfall logs -f job/plain" in text
    rankfall(capsys, "report", "job/plain", "-o", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "rankfall attach" not in page
    assert "rankfall logs -f job/plain" in page
    assert "no process records its lines, seen 0" in " ".join(text.split())


def test_i33_a_suspended_foreign_job_is_said_to_be_suspended(cluster, capsys):
    cluster.job(suspend=True)
    since = {"type": "Suspended", "status": "True", "lastTransitionTime": "2026-01-31T11:58:00Z"}
    cluster.put("/apis/batch/v1/namespaces/here/jobs/plain", job(suspend=True) | {"status": {"conditions": [since]}})
    text = rankfall(capsys, "status", "job/plain")
    assert f"Run {RUN} is suspended" in text
    assert "0 active" in text
    text = rankfall(capsys, "why", "job/plain")
    assert text.startswith("The job is suspended in the cluster since 2026-01-31T11:58:00Z.")
    assert "running" not in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_i18_p7_who_follows_a_foreign_job_lets_go_by_a_signal_and_changes_nothing(plain, number, capsys):
    main = threading.get_ident()
    run: list[RunDir] = []

    def send():
        wait_until(lambda: signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL, timeout=20, what="handlers")
        run.extend(
            wait_until(
                lambda: [one for one in list_runs(default_home()) if one.lease_holder()], timeout=20, what="a recorder"
            )
        )
        signal.pthread_kill(main, number)

    sender = threading.Thread(target=send)
    sender.start()
    assert app.run(["logs", "-f", "job/plain"]) == 128 + number
    sender.join()
    assert "rankfall: job/plain continues\n" in capsys.readouterr().err
    assert run[0].lease_holder() is None


def test_a_foreign_job_is_followed_to_its_end_and_explained(plain, capsys):
    cluster, pods = plain

    def story() -> None:
        directory = RunDir.open(home, RUN)
        wait_until(lambda: directory.lease_holder() is not None, timeout=20, what="a recorder")
        for n in range(3, 50):
            cluster.write(pods[0], f"pod 0 line {n}")
            if n % 10 == 0:
                cluster.do(lambda made: made.cut(pods[0]))
        cluster.write(pods[1], *TRACE)
        cluster.end(pods[1], 1)
        cluster.end(pods[0], 143)
        cluster.job(ended="Failed")

    assert app.run(["logs", "job/plain"]) == 0
    capsys.readouterr()
    home = RunDir.open(gang_home(), RUN).path.parents[1]
    teller = threading.Thread(target=story)
    teller.start()
    out = rankfall(capsys, "logs", "-f", "job/plain", "--no-prefix")
    teller.join()
    assert [line for line in out.splitlines() if line.startswith("pod 0")] == [f"pod 0 line {n}" for n in range(50)]
    verdict = json.loads(rankfall(capsys, "why", "job/plain", "-o", "json"))
    assert (verdict["cause"]["slug"], verdict["rank"], verdict["slot"]) == ("user_code_exception", 3, 1), verdict
    assert (verdict["pod"], verdict["node"]) == ("plain-1", "n1")
    assert json.loads(rankfall(capsys, "status", RUN, "-o", "json"))["state"] == "failed"


@pytest.mark.parametrize(
    ("count", "words"), [(1, ""), (2, "slot 0"), (3, "slots 0, 2"), (11, "slots 0, 2, 3, 4, 5, 6, 7, 8 and 2 more")]
)
def test_of_a_foreign_job_whose_pods_were_taken_away_it_is_said_whose_lines_are_missing(cluster, capsys, count, words):
    last = cluster.pod(min(1, count - 1), name="plain-1")
    cluster.write(last, *TRACE)
    cluster.end(last, 1)
    cluster.job(count=count, ended="Failed")
    verdict = json.loads(rankfall(capsys, "why", "job/plain", "-o", "json"))
    assert (verdict["cause"]["slug"], verdict["rank"]) == ("user_code_exception", 3), verdict
    said = [text for text in verdict["missing"] if text.startswith("lines and states of")]
    there = "they had no pod when Rankfall listed the pods"
    how = "next time keep rankfall logs -f job/plain running while the job runs"
    assert said == ([f"lines and states of {words}: {there}; {how}"] if words else [])


def test_a_second_viewer_reads_what_the_first_one_records(plain, capsys):
    cluster, pods = plain
    rankfall(capsys, "logs", "job/plain")
    directory = RunDir.open(gang_home(), RUN)
    with directory.lease():
        cluster.write(pods[0], "not seen by who only reads")
        assert "not seen" not in rankfall(capsys, "logs", "job/plain")
    assert "not seen" in rankfall(capsys, "logs", "job/plain")


@pytest.mark.parametrize("verb", ["attach", "cancel", "suspend", "resume", "resize"])
def test_what_would_change_a_foreign_job_is_refused_by_name(plain, capsys, verb):
    rankfall(capsys, "status", "job/plain")
    more = ["3"] if verb == "resize" else []
    for name in ("job/plain", RUN):
        assert app.run([verb, name, *more]) == 2
        err = capsys.readouterr().err
        assert "job/plain" in err
        assert "so Rankfall only reads it" in err


def test_what_does_not_exist_ends_with_66_and_says_what_to_do(cluster, capsys):
    for verb in ("logs", "status", "why"):
        assert app.run([verb, "pytorchjob/none", "-n", "there"]) == 66
        err = capsys.readouterr().err
        assert "no pytorchjobs" in err
    assert app.run(["logs", "pod/none"]) == 66
    assert app.run(["logs", "deployment/none"]) == 2
    assert "use one of these kinds: job, jobset" in capsys.readouterr().err
    assert app.run(["logs", "some-run", "-n", "there"]) == 2


def test_a_missing_right_is_named(plain, capsys):
    cluster, _ = plain
    cluster.do(lambda made: setattr(made, "pods_refused", 403))
    assert app.run(["logs", "job/plain"]) != 0
    assert "request the rights get, list and watch of pods" in capsys.readouterr().err
    cluster.do(lambda made: setattr(made, "gets_refused", 403))
    assert app.run(["logs", "job/plain"]) != 0
    assert "request the rights get, list and watch of jobs (batch)" in capsys.readouterr().err


def test_a_job_that_is_gone_is_answered_from_its_record(plain, capsys):
    cluster, pods = plain
    rankfall(capsys, "logs", "job/plain")
    cluster.drop("/apis/batch/v1/namespaces/here/jobs/plain")
    for pod in pods:
        cluster.do(lambda made, pod=pod: made.delete(pod))
    assert app.run(["logs", "job/plain"]) == 0
    out, err = capsys.readouterr()
    assert "pod 1 line 2" in out
    assert "this is its last recorded state" in err
    assert json.loads(rankfall(capsys, "status", RUN, "-o", "json"))["state"] == "deleted"


def test_an_object_of_rankfalls_own_run_leads_to_that_run(plain, capsys):
    cluster, _ = plain
    item = cluster.world.objects["/apis/batch/v1/namespaces/here/jobs/plain"]
    item["metadata"]["labels"] = {"rankfall.dev/run": "train-123456"}
    cluster.put("/apis/batch/v1/namespaces/here/jobs/plain", item)
    assert app.run(["logs", "job/plain"]) == 66
    assert "belongs to Rankfall's run 'train-123456'" in capsys.readouterr().err


def test_a_bare_pod_is_a_target(cluster, capsys):
    pod = cluster.pod(0, name="lonely", labels={})
    cluster.write(pod, "here I am")
    assert "here I am" in rankfall(capsys, "logs", "po/lonely")
    cluster.end(pod, 3)
    verdict = json.loads(rankfall(capsys, "why", "pod/lonely", "-o", "json"))
    assert (verdict["state"], verdict["slot"], verdict["rank"], verdict["pod"]) == ("failed", 0, None, "lonely"), (
        verdict
    )


def test_launch_s16_ranks_that_the_manifest_proves_are_told_without_a_look_into_a_pod(cluster, capsys):
    cluster.job()
    for number in range(2):
        pod = cluster.pod(number)
        options = ["--nnodes=2", f"--node-rank={number}", "--nproc-per-node=2", "--tee", "3"]
        pod.manifest = {"command": ["torchrun", *options, "train.py"]}
        cluster.do(lambda made, pod=pod: made.tell("MODIFIED", pod))
        cluster.write(pod, *(f"[default{local}]:I am rank {2 * number + local}" for local in range(2)), "of no rank")
    out = rankfall(capsys, "logs", "job/plain", "--no-exec")
    tagged = [line for line in out.splitlines() if "I am" in line]
    assert sorted(tagged) == [f"[rank {rank}] [default{rank % 2}]:I am rank {rank}" for rank in range(4)]
    assert sorted(set(out.splitlines()) - set(tagged)) == ["[slot 0] of no rank", "[slot 1] of no rank"]
    assert "I am rank 3" in rankfall(capsys, "logs", "job/plain", "--rank", "3")


def test_a_pod_that_does_not_say_which_one_it_is_is_named_and_not_taken_for_another(plain, capsys):
    cluster, _ = plain
    cluster.write(cluster.pod(0, name="stray", labels={}), "who am I")
    assert app.run(["logs", "job/plain"]) == 0
    out, err = capsys.readouterr()
    assert "who am I" not in out
    assert "stray has no number within its job: its log is not read" in err


def test_pods_without_places_are_numbered_as_they_were_made(cluster, capsys):
    cluster.job(count=2, completionMode="NonIndexed", backoffLimit=3)
    for name in ("a", "b"):
        cluster.write(cluster.pod(0, name=f"plain-{name}", labels={}), f"I am {name}")
    out = rankfall(capsys, "logs", "job/plain")
    assert sorted(out.splitlines()) == ["[slot 0] I am a", "[slot 1] I am b"]
    first = cluster.world.pods["plain-a"]
    cluster.end(first, 1)
    cluster.write(cluster.pod(0, name="plain-c", labels={}), "I am c")
    out = rankfall(capsys, "logs", "job/plain")
    assert sorted(out.splitlines()) == ["[slot 0] I am a", "[slot 0] I am c", "[slot 1] I am b"]


@pytest.fixture
def untagged(cluster: Foreigners, capsys) -> tuple[str, str]:
    """Output and news of a follow of a job without ``--tee``, whose first rank prints what looks like prefixes of others; the rank 3 raises."""
    cluster.job()
    pods = [cluster.pod(number) for number in range(2)]
    cluster.write(pods[0], "[default1]:printed by rank 0 really", "[default7]:of nobody")
    cluster.write(pods[1], *TRACE)

    def story() -> None:
        wait_until(lambda: any(one.lease_holder() for one in list_runs(default_home())), timeout=20, what="a recorder")
        cluster.end(pods[1], 1)
        cluster.end(pods[0], 143)
        cluster.job(ended="Failed")

    teller = threading.Thread(target=story)
    teller.start()
    assert app.run(["logs", "-f", "job/plain", "--no-exec"]) == 0
    teller.join()
    return capsys.readouterr()


def test_i19_p11_text_that_looks_like_a_prefix_stands_under_its_slot_and_nothing_is_called_missing(untagged):
    out, err = untagged
    assert out.splitlines()[:2] == ["[slot 0] [default1]:printed by rank 0 really", "[slot 0] [default7]:of nobody"]
    assert "run.db" not in err
    assert f"lines are listed by slot (one slot per pod) (rankfall logs {RUN} --slot N)" in err


def test_i19_p11_where_lines_stand_under_slots_the_advice_shows_them(untagged, capsys):
    for words in (("--rank", "3"), ("--rank", "failed"), ("-f", "--rank", "3")):
        assert app.run(["logs", "job/plain", *words]) == 0
        out, err = capsys.readouterr()
        assert (out, f"for all lines of their pods: rankfall logs {RUN} --attempt 1 --slot 1\n" in err) == ("", True)
    assert app.run(["logs", "job/plain", "--rank", "0"]) == 0
    assert f"no line matches; rankfall logs {RUN} --slot N shows the lines of one pod\n" in capsys.readouterr().err
    told = rankfall(capsys, "why", "job/plain")
    words = next(line.split()[2:] for line in told.splitlines() if line.startswith("  $ rankfall logs"))
    assert words[-4:] == ["--slot", "1", "--tail", "50"]
    assert rankfall(capsys, *words).splitlines()[-1] == f"[slot 1] {TRACE[-1]}"


def jobset(restarts: int = 0, *, ended: str = "", uid: str = UID) -> dict:
    """A JobSet of one replicated job of two pods, which starts its gang again twice at most."""
    inner = {"completions": 2, "parallelism": 2, "template": {"spec": {"containers": [{"name": "main"}]}}}
    return {
        "metadata": meta("two", uid=uid),
        "spec": {
            "failurePolicy": {"maxRestarts": 2},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": inner}}],
        },
        "status": {"restarts": restarts} | conditions(ended),
    }


def newest(run: RunDir) -> int | None:
    with run.reader() as reader:
        return reader.newest_attempt()


def of_gang(number: int, restart: int) -> dict[str, str]:
    prefix = "jobset.sigs.k8s.io"
    labels = {"jobset-name": "two", "jobset-uid": UID, "replicatedjob-name": "node", "job-index": "0"}
    return {INDEX: str(number)} | {
        f"{prefix}/{name}": value for name, value in (labels | {"restart-attempt": str(restart)}).items()
    }


def test_i19_p11_a_gang_that_was_started_again_and_the_end_of_the_job_are_told_beside_its_lines(cluster, capsys):
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/here/jobsets/two"
    cluster.put(path, jobset())
    first = [cluster.pod(n, name=f"two-0-{n}", labels=of_gang(n, 0)) for n in range(2)]
    cluster.write(first[1], "of the first gang")

    def story() -> None:
        run = wait_until(
            lambda: [one for one in list_runs(default_home()) if one.lease_holder()], timeout=20, what="run"
        )
        begun = run[0].path / "kube" / "attempt-1" / "start.json"
        wait_until(begun.exists, timeout=20, what="the first start")
        for pod in first:
            cluster.end(pod, 1)
        cluster.put(path, jobset(restarts=1))
        wait_until(lambda: newest(run[0]) == 2, timeout=20, what="the second start")
        for pod in first:
            cluster.do(lambda made, pod=pod: made.delete(pod))
        second = [cluster.pod(n, name=f"two-1-{n}", labels=of_gang(n, 1)) for n in range(2)]
        cluster.write(second[0], "of the second gang")
        for pod in second:
            cluster.end(pod)
        cluster.put(path, jobset(restarts=1, ended="Completed"))

    teller = threading.Thread(target=story)
    teller.start()
    assert app.run(["logs", "-f", "jobset/two", "--no-exec"]) == 0
    teller.join()
    out, err = capsys.readouterr()
    assert out.splitlines() == ["[slot 1] of the first gang", "[slot 0] of the second gang"]
    assert "rankfall: retry: jobset two restarted the gang" in err
    assert "rankfall: attempt 2: 2 slots" in err
    assert err.endswith("rankfall: jobset/two succeeded\n")
    assert app.run(["logs", "jobset/two"]) == 0
    out, err = capsys.readouterr()
    assert (out, "its gang was started again: attempt 2 is the newest start; " in err) == (
        "[slot 0] of the second gang\n",
        True,
    )


def test_i32_a_gang_that_is_suspended_and_resumed_has_a_number_and_lines_of_its_own(cluster, capsys):
    """JobSet counts no restart for it; its next pods come before its own status says so."""
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/here/jobsets/two"

    def shown(execution: int, *, ended: str = "") -> dict:
        item = jobset(ended=ended)
        return item | {"status": item["status"] | {"executionAttempts": execution}}

    def gang(execution: int) -> list:
        marks = {"jobset.sigs.k8s.io/execution-attempt": str(execution)}
        return [cluster.pod(n, name=f"two-{execution}-{n}", labels=of_gang(n, 0), annotations=marks) for n in range(2)]

    cluster.put(path, shown(0))
    first = gang(0)
    cluster.write(first[1], "of the first gang")

    def story() -> None:
        run = wait_until(
            lambda: [one for one in list_runs(default_home()) if one.lease_holder()], timeout=20, what="run"
        )
        begun = run[0].path / "kube" / "attempt-1" / "start.json"
        wait_until(begun.exists, timeout=20, what="the first start")
        logs = run[0].path / "logs" / "attempt-1"
        wait_until(
            lambda: any(b"of the first gang" in path.read_bytes() for path in logs.rglob("*.log")),
            timeout=20,
            what="the first gang's line",
        )
        second = gang(1)
        cluster.write(second[0], "of the second gang")
        for pod in first:
            cluster.end(pod, 143)
            cluster.do(lambda made, pod=pod: made.delete(pod))
        cluster.put(path, shown(1))
        wait_until(lambda: newest(run[0]) == 2, timeout=20, what="the second start")
        for pod in second:
            cluster.end(pod)
        cluster.put(path, shown(1, ended="Completed"))

    teller = threading.Thread(target=story)
    teller.start()
    assert app.run(["logs", "-f", "jobset/two", "--no-exec"]) == 0
    teller.join()
    out, err = capsys.readouterr()
    assert out.splitlines() == ["[slot 1] of the first gang", "[slot 0] of the second gang"]
    assert "rankfall: attempt 2: 2 slots" in err
    (run,) = list_runs(default_home())
    pods = [sorted(pod.name for pod in JournalReader.read(journal_path(run.path, n)).values()) for n in (1, 2)]
    assert pods == [["two-0-0", "two-0-1"], ["two-1-0", "two-1-1"]]


def gang_home():
    from rankfall.rundir import default_home  # noqa: PLC0415 - of the environment of the test

    return default_home()
