"""Scanning a chunk finds what matching line by line finds, whatever the bytes are."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.verdict.signatures import patterns
from rankfall.verdict.signatures.catalogue import FAMILIES, Catalogue, default_catalogue, parse, source
from rankfall.verdict.signatures.matcher import MAX_GROUP, Hit, best, kinds
from rankfall.verdict.signatures.patterns import required_words

TEXTS = [
    each.text.encode() for family in FAMILIES for signature in parse(source(family), origin=family, check=False)
    for each in (*signature.example, *signature.miss)
]  # fmt: skip
LINES = st.one_of(
    st.sampled_from(TEXTS),
    st.binary(max_size=60),
    st.builds(lambda a, b, c: a + b + c, st.binary(max_size=9), st.sampled_from(TEXTS), st.binary(max_size=9)),
).map(lambda line: line.replace(b"\n", b" "))
WHERE = st.sampled_from(["line", "exception", "launcher", "kernel", ("line", "kernel", "exception")])


def seen(hits: list[Hit], shift: int = 0) -> list[tuple[str, int, int, int, int]]:
    return [
        (hit.signature.id, hit.start + shift, hit.end + shift, hit.line_start + shift, hit.line_end + shift)
        for hit in hits
    ]


@given(st.lists(LINES, max_size=8), WHERE, st.booleans())
@settings(max_examples=300)
def test_a_chunk_has_the_hits_of_its_lines(lines: list[bytes], where: str, last_newline: bool) -> None:  # noqa: FBT001
    catalogue = default_catalogue()
    data = b"\n".join(lines) + (b"\n" if last_newline else b"")
    wanted, offset = [], 0
    for line in lines:
        wanted += seen(catalogue.match_line(line, where), offset)  # type: ignore[arg-type]
        offset += len(line) + 1
    assert seen(list(catalogue.scan(data, where))) == wanted  # type: ignore[arg-type]
    assert seen(list(catalogue.scan(memoryview(data), where))) == wanted  # type: ignore[arg-type]


STARTS = [
    "", "[rank 3] ", "[Rank 3] ", "[RANK 3] ", "[rank3]: ", "[default3]:", "rank 3: ", "rank=3 ", "[1,3]<stdout>:", "3: ", "worker-3 | ",
    "(RayTrainWorker pid=12, ip=10.0.0.1) ", "[pod/job-worker-3/main] [default3]: ", "[slot 3] ", "job-worker-3: ", "(TrainWorker rank=3 pid=4) ",
    "2026-01-01 00:00:00,123 INFO rank 3 ",
]  # fmt: skip
STEPS = [
    "step 12/1000 loss 1.2345 lr 1.0e-04 grad_norm 0.5", "count 3 6000|1795996884666482045|.....", "Epoch 1:  12%|#  | 12/100 [00:12<01:28,  1.2it/s, loss=0.3]",
    "INFO trainer: iteration 10/ 500 | elapsed time per iteration (ms): 12.0 | lm loss: 1.0E+00 |", '{"step": 3, "loss": 2.1, "tokens_per_second": 1000}',
]  # fmt: skip


@pytest.mark.parametrize("start", STARTS)
def test_a_line_of_a_step_is_looked_at_once(start: str) -> None:
    # A line with a word of some signature costs fifty times as much.
    lines = "".join(f"{start}{step}\n" for step in STEPS).encode()
    assert list(default_catalogue().candidates(lines, Catalogue.STREAM)) == []


@given(st.lists(LINES, min_size=1, max_size=8), st.integers(0, 8))
def test_where_a_chunk_ends_does_not_matter(lines: list[bytes], cut: int) -> None:
    catalogue = default_catalogue()
    whole = [line + b"\n" for line in lines]
    first = b"".join(whole[:cut])
    parts = seen(list(catalogue.scan(first))) + seen(list(catalogue.scan(b"".join(whole[cut:]))), len(first))
    assert parts == seen(list(catalogue.scan(b"".join(whole))))


@given(st.binary(max_size=400), WHERE)
def test_arbitrary_bytes_never_raise(data: bytes, where: str) -> None:
    for hit in default_catalogue().scan(data, where):  # type: ignore[arg-type]
        assert 0 <= hit.line_start <= hit.start <= hit.end <= hit.line_end <= len(data)
        assert b"\n" not in data[hit.line_start : hit.line_end]


PIECES = st.recursive(
    st.sampled_from([*"abc", "ab", "[ab]", "[^a]", ".", r"\d", r"\.", "^", r"\b", "abcd", "cab", r"\w", "[a-c]"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{1,3}", "{2}", "*?"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
    ),
    max_leaves=12,
)


@given(PIECES, st.text("abcd1. ", max_size=24))
@settings(max_examples=800)
def test_a_match_holds_one_of_the_required_words(pattern: str, text: str) -> None:
    words = required_words(pattern)
    if words is not None and re.search(pattern, text):
        assert any(word in text for word in words)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("boom", {"boom"}),
        ("x+boom!?", {"boom!", "boom"}),
        ("(?P<rank>\\d+) lost|peer (?:gone|away)", {" lost", "peer gone", "peer away"}),
        ("[Ss]top it", {"Stop it", "stop it"}),
        ("(?i)boom", None),
        (r"\w+", None),
        ("ab|boom", None),
        (r"boom\pL", None),
        ("a{2", None),
        ("boom)", None),
        ("[é]boom", None),
        ("*boom", None),
        ("(boom", None),
        ("\\", None),
    ],
)
def test_required_words(pattern: str, words: set[str] | None) -> None:
    assert required_words(pattern) == words


def test_a_match_never_leaves_its_line() -> None:
    (signature,) = parse(
        "[[signature]]\nid='gpu_oom.x'\nslug='gpu_oom'\nrole='primary'\nwhere=['line']\nspecificity=1\n"
        "pattern='one\\s+two[^x]*'\nprinted_by='x'\n",
        origin="x",
    )
    catalogue = Catalogue([signature])
    assert list(catalogue.scan(b"one\ntwo\n")) == []
    (hit,) = catalogue.scan(b"zero\none  two three\nfour\n")
    assert (hit.start, hit.end, hit.line_start, hit.line_end) == (5, 19, 5, 19)


def test_groups_are_bounded_and_decoded() -> None:
    line = b"[Errno 2] No such file or directory: '/x/.cache/" + b"\xff" * 2000 + b"'"
    hits = default_catalogue().match_line(line)
    (path,) = (hit.groups["path"] for hit in hits if "path" in hit.groups)
    assert len(path.encode("utf-8", "replace")) <= 3 * MAX_GROUP
    assert "\ufffd" in path


def test_the_best_hit_is_the_most_specific_then_the_role_then_the_id() -> None:
    hits = default_catalogue().match_line(b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB")
    assert {hit.signature.id for hit in hits} >= {"gpu_oom.torch", "user_code_exception.line"}
    chosen = best(reversed(hits))
    assert chosen is not None
    assert chosen.signature.id == "gpu_oom.torch"
    assert best([]) is None


def test_lines_bring_launcher_reports_along() -> None:
    assert kinds("line") == {"line", "launcher"}
    assert kinds("launcher") == {"launcher"}
    report = b"  exitcode  : -9 (pid: 6670)  (SIGKILL)"
    for where in ("line", "launcher"):
        (hit,) = (h for h in default_catalogue().match_line(report, where) if h.signature.id == "killed_unknown.exit")
        assert hit.groups == {"exit": "-9", "pid": "6670"}
    assert default_catalogue().match_line(report, "kernel") == []


def test_an_empty_catalogue_finds_nothing() -> None:
    assert list(Catalogue([]).scan(b"RuntimeError: x\n")) == []
    assert Catalogue([]).match_line(b"x") == []
    assert Catalogue([]).get("gpu_oom.torch") is None
    assert default_catalogue().get("gpu_oom.torch") is not None


def test_a_very_long_line_is_one_line() -> None:
    line = b"x" * (8 << 20) + b" [Errno 28] No space left on device " + string.ascii_letters.encode() * 1000
    (hit,) = default_catalogue().scan(line)
    assert (hit.signature.slug, hit.line_start, hit.line_end) == ("disk_full", 0, len(line))


def test_a_refused_pattern_says_why() -> None:
    with pytest.raises(patterns.PatternError, match="missing"):
        patterns.compile_one("a(b")


@pytest.mark.parametrize("end", [b"\r", b"   ", b" \t\r"])
def test_what_a_terminal_adds_to_a_line_changes_no_hit(end: bytes) -> None:
    catalogue = default_catalogue()
    for text in TEXTS:
        if text == text.rstrip():
            plain = [hit.signature.id for hit in catalogue.match_line(text, Catalogue.STREAM)]
            assert [hit.signature.id for hit in catalogue.match_line(text + end, Catalogue.STREAM)] == plain
            assert [hit.signature.id for hit in catalogue.scan(text + end + b"\n", Catalogue.STREAM)] == plain
