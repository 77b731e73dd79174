"""A GPU that ran out: of a foreign process's memory only where others hold more than the process that says so."""

from __future__ import annotations

import pytest

from rankfall.evidence.readers.classify import exception_meaning, own_process_holds_most
from rankfall.verdict.signatures.catalogue import default_catalogue

FULL = "CUDA out of memory. Tried to allocate 52.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 39.62 MiB is free. "
OTHERS = "Process {} has {} memory in use. "
TORCH = "Of the allocated memory {} is allocated by PyTorch."
OWN = "Including non-PyTorch memory, this process has {} memory in use. " + TORCH.format("1.00 GiB")


def shares(*sizes: str) -> str:
    return "".join(OTHERS.format(1500 + n, size) for n, size in enumerate(sizes))


def said(own: str, *others: str) -> str:
    return FULL + shares(*others) + OWN.format(own)


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (said("1.20 GiB", "40.00 GiB", "37.00 GiB"), "gpu_oom_foreign"),
        (said("60.00 GiB", "1.19 GiB", "1.19 GiB"), "gpu_oom"),
        (said("2048.00 MiB", "1.00 GiB", "1.00 GiB"), "gpu_oom"),
        (said("2047.00 MiB", "1.00 GiB", "1.00 GiB"), "gpu_oom_foreign"),
        # It does not say how much it holds itself.
        (FULL + OTHERS.format(1, "1.00 GiB") + OTHERS.format(2, "1.00 GiB"), "gpu_oom_foreign"),
        (said("60.00 GiB"), "gpu_oom"),
        # In a container it is one of the others: the smallest that holds what torch has allocated.
        (FULL + shares("60.00 GiB", "1.19 GiB") + TORCH.format("58.50 GiB"), "gpu_oom"),
        (FULL + shares("1.19 GiB", "60.00 GiB") + TORCH.format("58.50 GiB"), "gpu_oom"),
        (FULL + shares("60.00 GiB", "16.00 GiB") + TORCH.format("15.20 GiB"), "gpu_oom_foreign"),
        (FULL + shares("60.00 GiB", "16.00 GiB") + TORCH.format("70.00 GiB"), "gpu_oom_foreign"),
    ],
)
def test_the_greater_part_of_the_memory_decides_whose_it_is(text, slug):
    meaning = exception_meaning(default_catalogue(), [("torch.OutOfMemoryError", text)])
    assert meaning.slug == slug
    assert meaning.fingerprint.startswith(f"{slug}:")


def test_what_others_print_is_bounded():
    assert not own_process_holds_most("this process has 9 GiB memory in use"[:20])
    assert not own_process_holds_most("this process has " + "9" * 40 + " GiB memory in use")
    assert not own_process_holds_most(" " * 5000 + OWN.format("9.00 GiB"))
