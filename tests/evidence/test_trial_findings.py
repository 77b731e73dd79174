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


ALLOCATOR = (
    "2026-11-30 03:12:40.123456: W external/local_xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out"
    " of memory trying to allocate 3.81GiB (rounded to 4096000000)requested by op Relu\n"
)
GRAPH = (
    f"{TRACE}tensorflow.python.framework.errors_impl.{{}}Error: Graph execution error:\n\n"
    "Detected at node functional_1/conv/Relu defined at (most recent call last):\n"
)


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (ALLOCATOR + GRAPH.format("ResourceExhausted"), "gpu_oom"),
        # Without the allocator's line, anything may be exhausted.
        (GRAPH.format("ResourceExhausted"), "unknown"),
        (ALLOCATOR + GRAPH.format("InvalidArgument"), "user_code_exception"),
    ],
)
def test_tensorflow_s_allocator_explains_what_a_graph_exhausted(verdict, text, slug):
    assert verdict(text).cause.slug == slug


@pytest.mark.parametrize(("code", "slug"), [("-9", "killed_unknown"), ("-11", "segfault"), ("1", "unknown")])
def test_sagemaker_states_the_code_of_its_script(verdict, code, slug):
    toolkit = "2026-11-30 03:12:44,100 sagemaker-training-toolkit ERROR   "
    found = verdict(
        f"{toolkit} Reporting training FAILURE\n{toolkit} ExecuteUserScriptError:\nExitCode {code}\n"
        f'ErrorMessage ""\nCommand "/opt/conda/bin/python3.10 train.py"\n{toolkit} Encountered exit_code {code}\n'
    )
    assert found.cause.slug == slug
