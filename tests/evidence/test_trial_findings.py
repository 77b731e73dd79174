"""Findings of users' trials: texts in the forms that programs print, each beside one that only looks alike."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files
from rankfall.render.summary import advice_text

TRACE = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'


@pytest.fixture
def verdict(tmp_path):
    def explain(text, name="job.out"):
        file = tmp_path / name
        file.write_text(text)
        return explain_files([file]).verdict

    return explain


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "TORCH_CUDA_ARCH_LIST"),
        ("OSError: [Errno 24] Too many open files: '/data/shard-00012.tar'", "ulimit -n"),
        ("RuntimeError: received 0 items of ancdata", "set_sharing_strategy"),
        (
            (
                "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment"
                " variable or set triton.knobs.build.impl."
            ),
            "gcc",
        ),
        ("RuntimeError: CUDA error: invalid argument", "Fix the line"),
        ("OSError: [Errno 24] opened too often", "Fix the line"),
    ],
)
def test_an_exception_of_a_lack_gets_the_advice_that_ends_it(verdict, line, advice):
    found = verdict(f"{TRACE}{line}\n")
    assert found.cause.slug == "user_code_exception"
    assert advice in advice_text(found)
