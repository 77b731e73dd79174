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
    "logging", "loguru", "ISO clock", "clock in brackets",
)  # fmt: skip


def unwrapped(text: bytes, *, size: int = 1 << 20) -> bytes:
    reader = Unwrapper()
    parts = [reader.push(text[at : at + size]) for at in range(0, len(text), size)]
    return b"".join((*parts, reader.push(b"", final=True)))


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
