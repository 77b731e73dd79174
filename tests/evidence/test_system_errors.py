"""Texts of errno without their number, as C++, Rust and wrappers of Python print them: the number's cause."""

from __future__ import annotations

import io

import pytest

from rankfall.explain import explain_stream

CAUSES = {
    "Permission denied": "permission_denied",
    "Operation not permitted": "permission_denied",
    "Read-only file system": "permission_denied",
    "No space left on device": "disk_full",
    "Disk quota exceeded": "disk_full",
    "Cannot allocate memory": "host_alloc_failed",
    "Input/output error": "shared_fs_error",
    "Stale file handle": "shared_fs_error",
    "Connection refused": "peer_lost",
    "Connection reset by peer": "peer_lost",
    "No route to host": "rdzv_unreachable",
    "Address already in use": "address_in_use",
}
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in main\n    x()\n'
FORMS = {
    "bare": "RuntimeError: {}",
    "file": "OSError: cannot open /data/ckpt: {}",
    "end": "RuntimeError: open of shard 3: {}.",
    "traceback": TRACEBACK + "RuntimeError: {}",
    "json": '  "message": "RuntimeError: {}",',
    "c++": "terminate called after throwing an instance of 'std::runtime_error'\n  what():  open: {}",
}


def cause_of(text: str) -> str:
    return explain_stream(io.BytesIO(text.encode())).verdict.cause.slug


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", CAUSES)
def test_i23_p3_the_text_of_a_system_error_alone_has_the_cause_of_its_number(text: str, form: str) -> None:
    said = FORMS[form].format(text)
    slug = cause_of(f"step 1\n{said}\n")
    # A program that aborts by an exception of an unknown network's operation only aborted.
    assert slug == CAUSES[text] or (form == "c++" and slug == "native_abort" and CAUSES[text] == "rdzv_unreachable")


@pytest.mark.parametrize("text", CAUSES)
def test_i23_p3_such_a_text_that_no_exception_says_is_no_cause_of_a_later_bug(text: str) -> None:
    said = f"ssh: connect to host a: {text}\nstep 1\nstep 2\n{TRACEBACK}KeyError: 'lr'\n"
    assert cause_of(said) == "user_code_exception"


@pytest.mark.parametrize(
    ("statement", "slug"),
    [
        ("raise torch.distributed.DistNetworkError(", "peer_lost"),
        ("raise FileNotFoundError(path)", "user_code_exception"),
        ("assert layers % stages == 0, \\", "user_code_exception"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank14]: "])
def test_i23_a_traceback_that_is_cut_off_at_its_statement_names_the_type(
    statement: str, slug: str, prefix: str
) -> None:
    lines = ["Traceback (most recent call last):", '  File "t.py", line 561, in check', f"    {statement}"]
    found = explain_stream(io.BytesIO("".join(f"{prefix}{line}\n" for line in lines).encode())).verdict
    assert found.decisive is not None
    assert found.decisive.line.strip().endswith(statement)
    assert found.cause.slug == slug
    # A rank that lost its peers did not fail first.
    assert found.rank == (14 if prefix and slug != "peer_lost" else None)


@pytest.mark.parametrize("middle", ["", "[rank6]:     return inner(\n"])
def test_i23_a_traceback_that_is_cut_off_names_its_rank_and_no_cause(middle: str) -> None:
    text = (
        "[rank6]: Traceback (most recent call last):\n"
        f'[rank6]:   File "a.py", line 2, in train\n{middle}[rank6]:   File "b.py", line 9, in step\n[rank6]:     self.trai\n'
    )
    found = explain_stream(io.BytesIO(text.encode())).verdict
    assert (found.cause.slug, found.rank, found.scope) == ("unknown", 6, "rank")
    assert found.decisive is not None
    assert found.decisive.line.endswith("self.trai")
    assert found.missing[0] == "the exception of the shown traceback: the text ends before it"
    # The same text, finished, has its cause.
    whole = f"{text}[rank6]: torch.OutOfMemoryError: CUDA out of memory.\n"
    assert cause_of(whole) == "gpu_oom"


@pytest.mark.parametrize(
    ("text", "slug", "retry"),
    [
        ('Failed to pull image "a/b:1": Get https://a/v2/: net/http: request canceled', "image_pull", "yes"),
        ('Failed to pull image "a/b:1": manifest for a/b:1 not found', "image_pull", "no"),
        ("ssh: Could not resolve hostname node7:4: Name or service not known", "hostname_resolution", "no"),
        ("ssh: Could not resolve hostname node7: Name or service not known", "hostname_resolution", "once"),
        ("terminate called after throwing an instance of 'std::out_of_range'", "native_abort", "no"),
        # A text alone does not show that another node has a newer driver.
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 9000).", "driver_too_old", "no"),
    ],
)
def test_i23_a_signature_can_imply_another_retry_than_its_cause(text: str, slug: str, retry: str) -> None:
    found = explain_stream(io.BytesIO(f"{text}\n".encode())).verdict
    assert (found.cause.slug, found.retry) == (slug, retry)


def test_i23_a_loss_that_is_nan_is_a_cause_only_if_nothing_else_is_known() -> None:
    nan = "step 7 loss_cls: nan, loss: nan\n"
    assert cause_of("step 6 loss: 0.3\n" + nan * 3) == "nan_loss"
    assert cause_of(nan + TRACEBACK + "KeyError: 'lr'\n") == "user_code_exception"
    assert cause_of(nan + "srun: error: n1: task 3: Out Of Memory\n") == "host_oom"
