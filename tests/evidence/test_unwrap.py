"""What surrounds every line of a text on its way to a person is removed; what tells a rank stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.verdict.forms import FORMS
from rankfall.evidence.files.unwrap import MAX_HELD, Unwrapper, layers_of, without_escapes
from rankfall.explain import explain_files

TRACE = (
    "step 41 loss 2.5",
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 3, in main',
    "    step(batch)",
    '  File "/w/model.py", line 90, in step',
    "    return losses[key]",
    "KeyError: 'labels'",
    "",
    "W0101 10:00:00.000000 4242 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4301 closing signal SIGTERM",
)
SURROUNDED = (
    "docker's JSON", "a logger's JSON", "a cloud's JSON", "red", "indented", "quoted", "numbered", "syslog", "containerd", "stern", "epoch",
    "logging", "loguru",
)  # fmt: skip


def unwrapped(text: bytes, *, size: int = 1 << 20) -> bytes:
    reader = Unwrapper()
    parts = [reader.push(text[at : at + size]) for at in range(0, len(text), size)]
    return b"".join((*parts, reader.push(b"", final=True)))


@pytest.mark.parametrize("form", ["ISO clock", "clock in brackets"])
def test_the_time_of_a_line_stays_for_the_order_of_failures(form, tmp_path):
    text = "\n".join(FORMS[form](list(TRACE))) + "\n"
    assert unwrapped(text.encode()) == text.encode()
    (tmp_path / "job.log").write_text(text)
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.decisive.line.endswith("KeyError: 'labels'")) == ("user_code_exception", True)


@pytest.mark.parametrize("form", SURROUNDED)
def test_a_surrounded_text_is_read_as_the_text_itself(form):
    plain = "\n".join(TRACE) + "\n"
    text = "\n".join(FORMS[form](list(TRACE))) + "\n"
    assert unwrapped(text.encode()).decode().split() == plain.split()


@given(size=st.integers(1, 200), form=st.sampled_from(SURROUNDED))
def test_parts_of_any_size_give_the_same_text(size, form):
    text = ("\n".join(FORMS[form](list(TRACE))) + "\n").encode()
    # The first part shows what surrounds the text.
    reader = Unwrapper()
    first = text[: len(text) // 2 + size]
    parts = [reader.push(first), *(reader.push(text[at : at + size]) for at in range(len(first), len(text), size))]
    assert b"".join((*parts, reader.push(b"", final=True))) == unwrapped(text)


LONG = (
    "[rank3]: step 41 loss 2.5",
    (
        "[rank3]:[E1206 19:21:08.635298746 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=544997376, NumelOut=68124672, Timeout(ms)=600000) ran for 600061 "
        "milliseconds before timing out."
    ),
    "Traceback (most recent call last):",
    '  File "/opt/conda/lib/python3.10/site-packages/torch/nn/modules/module_of_a_rather_long_name.py", line 1501, in _call_impl',
    "    return forward_call(*args, **kwargs)",
    "RuntimeError: The size of tensor a (1024) must match the size of tensor b (2048) at non-singleton dimension 1, step 41",
)


@pytest.mark.parametrize("form", ["a terminal of 100 columns", "a quoted terminal of 120"])
@given(size=st.integers(1, 300))
def test_lines_that_a_terminal_broke_are_whole_again_at_their_numbers(form, size):
    shown = FORMS[form](list(LONG))
    text = ("\n".join(shown) + "\n").encode()
    assert unwrapped(text).decode().splitlines() == list(LONG)
    reader = Unwrapper()
    half = 3 * len(text) // 4
    out = reader.push(text[:half]) + b"".join(reader.push(text[at : at + size]) for at in range(half, len(text), size))
    out += reader.push(b"", final=True)
    assert out.decode().splitlines() == list(LONG)
    first = [next(at for at, one in enumerate(shown, 1) if line.startswith(one.removeprefix("> "))) for line in LONG]
    assert [reader.number(at) for at in range(1, len(LONG) + 1)] == first


def test_the_place_of_a_broken_line_is_that_of_the_file(tmp_path):
    path = tmp_path / "pasted.log"
    shown = FORMS["a terminal of 100 columns"](list(LONG))
    path.write_text("\n".join(shown) + "\n")
    verdict = explain_files([path]).verdict
    assert verdict.decisive is not None
    assert LONG[-1] in verdict.decisive.line
    at = next(number for number, line in enumerate(shown, 1) if line.startswith(("Traceback", "RuntimeError")))
    assert int(verdict.decisive.where.rpartition(":")[2]) >= at


STEPS = [
    f"step {step:06d} loss {step % 7}.{step % 97:02d}4 lr 0.000{step % 9} tokens per second {step % 89:05d} memory 7{step % 3}.1 GiB"
    for step in range(60)
]
BOX = ["│ " + f"frame {number}".ljust(96) + " │" for number in range(20)]
RULES = ["=" * 100, "a table of one width", "-" * 100, "another row", "=" * 100, "more"]


@pytest.mark.parametrize(
    "lines", [STEPS, BOX, RULES, [*STEPS[:3], "KeyError: 'a'", *STEPS[3:9], "Aborted (core dumped)"]]
)
def test_entries_of_one_length_are_not_joined(lines):
    text = ("\n".join(lines) + "\n").encode()
    assert unwrapped(text) == text


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=60), max_size=30))
def test_no_line_is_lost_or_added(lines):
    text = "\n".join(lines).encode()
    assert unwrapped(text).count(b"\n") == text.count(b"\n")


@pytest.mark.parametrize(
    "lines",
    [
        ["[rank3]: step 1", "[rank3]: Traceback (most recent call last):", '[rank3]:   File "a.py", line 1, in f'],
        ["3: step 1", "3: step 2", "3: step 3", "3: step 4"],
        [
            "worker-3 main Traceback (most recent call last):",
            'worker-3 main   File "a.py", line 1',
            "worker-3 main KeyError: 1",
        ],
        ['  File "a.py", line 1, in f', "    f()", '  File "b.py", line 2, in g', "    raise X("],
        ["Dec  2 10:41:07 n4 kernel[0]: [1.0] NVRM: Xid (PCI:0000:07:00): 79, x"] * 4,
        ["2025-01-01 10:00:00 - step 1", "2025-01-01 10:00:01 - step 2", "2025-01-01 10:00:02 - step 3"],
        ['{"step": 1}', '{"step": 2}', '{"step": 3}'],
    ],
)
def test_what_tells_a_rank_a_frame_or_a_kernels_line_stays(lines):
    text = ("\n".join(lines) + "\n").encode()
    assert unwrapped(text) == text


def test_a_collectors_rank_goes_with_the_line_and_two_layers_are_removed():
    inner = [json.dumps({"log": f"{line}\n", "rank": 5, "time": "2025-01-01T10:00:00Z"}) for line in TRACE]
    text = "\n".join(f"> {line}" for line in inner) + "\n"
    assert b"[rank5]: KeyError: 'labels'\n" in unwrapped(text.encode())


def test_the_lines_of_a_recorder_of_events_are_their_data():
    inner = [json.dumps({"event": "line", "data": f"{line}\n", "pipe": "stderr"}) for line in TRACE]
    assert unwrapped(("\n".join(inner) + "\n").encode()) == ("\n".join(TRACE) + "\n").encode()
    other = "".join(f"{json.dumps({'error': line, 'data': 'none'})}\n" for line in TRACE).encode()
    assert unwrapped(other) == other


def test_a_message_of_several_lines_stays_one_line():
    rows = [json.dumps({"message": "one\ntwo"}), json.dumps({"message": "three"}), json.dumps({"message": "four"})]
    text = ("\n".join(rows) + "\n").encode()
    assert unwrapped(text).count(b"\n") == 3


def test_colors_are_removed_also_without_their_escape():
    assert without_escapes(b"\x1b[1;31mERROR\x1b[0m x\x1b]8;;http://a\x07b") == b"ERROR xb"
    assert without_escapes(b"[1;36m(Engine pid=3)[0;0m [0mno") == b"(Engine pid=3) no"
    assert without_escapes(b"loss[3] m[12]") == b"loss[3] m[12]"


def test_a_line_without_end_does_not_wait_for_ever():
    reader = Unwrapper()
    assert layers_of(b"> a\n> b\n> c\n")
    assert reader.push(b"> a\n> b\n> c\n") == b"a\nb\nc\n"
    assert reader.push(b"> " + b"x" * MAX_HELD) == b"x" * MAX_HELD


def test_a_process_id_of_the_journal_is_no_rank(tmp_path):
    log = tmp_path / "job.txt"
    log.write_text("\n".join(f"Jan  1 10:00:00 n1 train[2]: {line}" for line in TRACE[:7]) + "\nunit stopped\n")
    verdict = explain_files([log]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", None)


PASTED = {
    "cat -n": lambda at, line: f"{at:6}\t{line}",
    "cat -n, without tabs": lambda at, line: f"{at:5}  {line}".rstrip(),
    "grep -n": lambda at, line: f"{at}:{line}",
    "grep -n with lines around": lambda at, line: f"{at}{':' if 'Error' in line else '-'}{line}",
    "grep -H": lambda at, line: f"logs/train.log:{line}",
    "grep -Hn": lambda at, line: f"train.log:{at}:{line}",
    "grep -Hn with lines around": lambda at, line: f"slurm-77.out{f':{at}:' if 'Error' in line else f'-{at}-'}{line}",
    "grep -H and a clock": lambda at, line: f"job.err:10:00:{at % 60:02} INFO {line}",
    "a fence": lambda at, line: f"{at:5}  {line}",
}  # fmt: skip


@pytest.mark.parametrize("form", PASTED)
@given(first=st.integers(1, 10**6), many=st.booleans())
def test_numbers_and_names_that_tools_print_before_lines_are_removed(form, first, many):
    lines = [*(f"step {at} loss 2.5" for at in range(9))] * many + [line for line in TRACE if line]
    text = [PASTED[form](at, line) for at, line in enumerate(lines, first)]
    if "fence" in form:
        text = ["```", *text, "```"]
    found = [line for line in unwrapped(("\n".join(text) + "\n").encode()).decode().splitlines() if line != "```"]
    # Spaces behind a colon belong to the number where no name is before it.
    assert [line.strip() for line in found] == [line.strip() for line in lines]
    assert len({len(line) - len(line.lstrip()) for line in found if "File" in line}) == 1


def test_the_names_that_grep_prints_give_ranks(tmp_path):
    trace = [line for line in TRACE[:7] if line]
    rows = [f"logs/rank_0.log:{at}:step {at}" for at in range(1, 5)]
    rows += [f"logs/rank_3.log-{at}-{line}" for at, line in enumerate(trace[:-1], 90)]
    rows += [f"logs/rank_3.log:96:{trace[-1]}", "--", f"logs/rank_3.log:200:[rank3]: {trace[-1]}"]
    text = unwrapped(("\n".join(rows) + "\n").encode()).decode().splitlines()
    assert text[4:] == [*(f"[rank3]: {line}" for line in trace), "--", f"[rank3]: {trace[-1]}"]
    (tmp_path / "found.txt").write_text("\n".join(rows))
    verdict = explain_files([tmp_path / "found.txt"]).verdict
    assert verdict.decisive is not None
    assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", 3)
    assert verdict.decisive.where.endswith(":11")


def test_numbers_may_jump_only_between_the_matches_of_grep():
    rows = ["7:step 1", "8:step 2", "--", "90:step 3", "91:step 4"]
    assert unwrapped("\n".join(rows).encode()).decode().splitlines() == ["step 1", "step 2", "--", "step 3", "step 4"]
    for other in (
        ["7: step 1", "8: step 2", "90: step 3"],
        ["100-200 tokens", "100-300 tokens", "101-100 tokens"],
        ["train.py:10: UserWarning: a", "train.py:11: UserWarning: b", "train.py:12: UserWarning: c"],
        ["gpu-1.log-a", "step 1", "gpu-1.log:b"],
        ["2026-11-01 a", "2026-11-02 b", "2026-11-03 c"],
        ["node1:3: a", "node1:3: b", "node1:4: c"],
    ):
        assert unwrapped("\n".join(other).encode()).decode().splitlines() == other


FAULT = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 88, in <module>',
    "    main()",
    '  File "/app/train.py", line 40, in step',
    '    x = batch["input_ids"]',
    "KeyError: 'input_ids'",
)
STACK = "\n".join(FAULT) + "\n"
# Where loggers put a traceback, beside the message.
KEYS = {
    "python-json-logger": {"exc_info": STACK},
    "structlog": {"exception": STACK},
    "stack_trace": {"stack_trace": STACK},
    "exc_text": {"exc_text": STACK.replace("\n", "\r\n")},
    "lines": {"traceback": STACK.splitlines(keepends=True)},
    "a flag before it": {"exc_info": True, "stack_trace": STACK},
    "flat ECS": {"error.stack_trace": STACK, "error.type": "KeyError"},
    "ECS, frames alone": {"error": {"type": "KeyError", "message": "'input_ids'", "stack_trace": "\n".join(FAULT[1:-1])}},
    "pino": {"error": {"message": "'input_ids'", "stack": STACK}},
    "OpenTelemetry": {"attributes": {"exception.stacktrace": STACK}},
}  # fmt: skip


def records(*more, text="message", steps=40):
    """Steps of four ranks, then ``more`` records."""
    rows = [{"level": "INFO", "rank": at % 4, text: f"step {at // 4}"} for at in range(steps)]
    return "".join(f"{json.dumps(row)}\n" for row in (*rows, *more))


@pytest.mark.parametrize("text", ["message", "msg"])
@pytest.mark.parametrize("key", KEYS)
def test_the_traceback_of_a_record_follows_its_text(key, text, tmp_path):
    rows = records(
        {"level": "ERROR", "rank": 3, text: "training failed", **KEYS[key]},
        {"level": "ERROR", "rank": 0, text: "failed, exiting"},
        text=text,
    )
    lines = unwrapped(rows.encode()).decode().splitlines()
    assert lines[40:] == [f"[rank3]: {line}" for line in ("training failed", *FAULT)] + ["[rank0]: failed, exiting"]
    (tmp_path / "s.jsonl").write_text(rows)
    verdict = explain_files([tmp_path / "s.jsonl"]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", 3)
    assert verdict.decisive is not None
    assert verdict.decisive.where.endswith(":41")


@given(
    places=st.lists(st.tuples(st.integers(1, 9), st.integers(2, 30)), max_size=9),
    size=st.integers(40, 3000),
    layer=st.booleans(),
)
def test_the_lines_of_tracebacks_have_the_number_of_their_record(places, size, layer):
    rows, numbers = [{"msg": "step"}] * 3, [1, 2, 3]
    for before, lines in places:
        rows = [*rows, *[{"msg": "step"}] * before, {"msg": "failed", "exc_info": "\n".join([FAULT[0]] * lines)}]
        numbers += [*range(numbers[-1] + 1, numbers[-1] + 1 + before), *[len(rows)] * (1 + lines)]
    inner = [json.dumps(row) for row in rows]
    text = "\n".join(json.dumps({"log": f"{row}\n"}) for row in inner) if layer else "\n".join(inner)
    reader = Unwrapper()
    # The first part shows what surrounds the text.
    first = len(text) // 2 + 200
    parts = [text[:first], *(text[at : at + size] for at in range(first, len(text), size))]
    out = b"".join([*(reader.push(part.encode()) for part in parts), reader.push(b"", final=True)])
    assert out.count(b"\n") == len(numbers) - 1
    assert [reader.number(at) for at in range(1, len(numbers) + 1)] == numbers
    assert sum(reader.is_added(at) for at in range(1, len(numbers) + 1)) == len(numbers) - len(rows)


def test_a_tag_in_the_message_is_on_each_line_of_its_traceback():
    rows = records({"message": "[rank2]: failed", "exc_info": STACK})
    assert unwrapped(rows.encode()).decode().splitlines()[40:] == [f"[rank2]: {line}" for line in ("failed", *FAULT)]


@pytest.mark.parametrize(
    "record",
    [
        {"message": STACK, "exc_info": STACK},
        {"message": "failed: " + STACK.replace("\n", " "), "exc_info": STACK},
        {"message": "failed", "exc_info": STACK, "stack_trace": STACK, "error": {"stack": STACK}},
    ],
)
def test_a_record_shows_its_traceback_once(record):
    text = unwrapped(records({"rank": 3, **record}).encode())
    # A record that stays an object is read by the readers of tracebacks, which take its first.
    assert b"exc_info" in text or text.count(b"[rank3]: Traceback ") + text.count(b"failed: Traceback") == 1


@pytest.mark.parametrize(
    "record",
    [
        {"message": "boom", "exc_info": None},
        {"message": "boom", "exc_info": [1, STACK]},
        {"message": "boom", "exc_info": {"a": {"stack": STACK}}},
        {"message": "boom", "exception": "ValueError('x')"},
        {"message": "boom", "stack": 'Stack (most recent call last):\n  File "a.py", line 3, in f\n    g()'},
        {"message": "boom", "error": {"stack_trace": '  File "a.py", line 3, in f\n    g()', "type": "a\nb"}},
        {"message": "boom", "rank": 10**4000, "level": 10**30},
        {"message": "boom", "rank": True},
    ],
)
def test_other_values_of_these_keys_add_nothing(record):
    text = unwrapped(records(record).encode())
    assert text.count(b"\n") == 41
    assert len(text) < 6000


def test_a_huge_or_long_record_and_very_many_cost_little(monkeypatch):
    monkeypatch.setattr("rankfall.evidence.files.unwrap._MAX_TRACED", 3)
    row = {"rank": 1, "message": "failed", "exc_info": STACK}
    text = unwrapped(records(*[row] * 9).encode())
    assert text.count(b"[rank1]: KeyError: 'input_ids'") == 3
    assert text.count(b'"exc_info"') == 6
    long = {"rank": 999_999, "message": "failed", "exc_info": FAULT[0] + "\n" * 60_000 + "x"}
    assert len(unwrapped(records(*[long] * 3).encode())) < 3 * 1000 * 30


def test_the_exception_of_an_endless_recursion_is_read(tmp_path):
    frames = (
        '  File "/app/model.py", line 40, in descend\n    return descend(node.left, depth + 1, seen | {node.left})\n'
        * 1500
    )
    last = "RecursionError: maximum recursion depth exceeded"
    (tmp_path / "s.jsonl").write_text(
        records({"rank": 3, "message": "failed", "exc_info": f"{FAULT[0]}\n{frames}{last}"})
    )
    verdict = explain_files([tmp_path / "s.jsonl"]).verdict
    assert verdict.decisive is not None
    assert (verdict.rank, verdict.decisive.line) == (3, f"[rank3]: {last}")


@pytest.mark.parametrize(
    "record",
    [
        {"level": "warning", "message": "fetch failed"},
        {"levelname": "INFO", "message": "fetch failed"},
        {"severity": 4, "message": "fetch failed"},
        {"message": "fetch failed, retrying (1/5)"},
    ],
)
def test_a_record_that_is_no_error_ends_nothing(record, tmp_path):
    (tmp_path / "s.jsonl").write_text(records({"rank": 3, "exc_info": STACK, **record}, {"message": "step 11"}))
    assert explain_files([tmp_path / "s.jsonl"]).verdict.cause.slug in {"none", "unknown"}


@pytest.mark.parametrize("steps", [0, 40])
def test_a_job_that_completed_after_an_error_has_not_failed(steps, tmp_path):
    after = [{"rank": 3, "message": f"step {at}"} for at in range(10, 10 + steps)]
    end = {"rank": 3, "level": "INFO", "message": "Training complete, total steps 50"}
    error = {"rank": 3, "level": "ERROR", "message": "could not read the shard, skipping", "exc_info": STACK}
    (tmp_path / "s.jsonl").write_text(records(error, *after, end))
    assert explain_files([tmp_path / "s.jsonl"]).verdict.cause.slug == "unknown"


def test_of_an_error_that_its_program_survived_a_later_failure_is_the_cause(tmp_path):
    error = {"rank": 3, "level": "ERROR", "message": "skipping", "exc_info": STACK.replace("KeyError", "OSError")}
    after = [{"rank": 3, "message": f"step {at}"} for at in range(10, 30)]
    last = {"rank": 3, "level": "ERROR", "message": "failed", "exc_info": STACK}
    (tmp_path / "s.jsonl").write_text(records(error, *after, last))
    verdict = explain_files([tmp_path / "s.jsonl"]).verdict
    assert verdict.decisive is not None
    assert verdict.decisive.where.endswith(":62")
    (tmp_path / "s.jsonl").write_text(records(error, *after))
    assert explain_files([tmp_path / "s.jsonl"]).verdict.cause.confidence == "suspected"
