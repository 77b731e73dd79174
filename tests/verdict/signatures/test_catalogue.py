"""The packaged tables: every signature knows its examples, none knows its near misses, every cause is covered."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import msgspec
import pytest

from rankfall.model.causes import catalogue as causes
from rankfall.verdict.diagnose.cause_tables import KERNEL_SIGNATURE_IDS
from rankfall.verdict.signatures import catalogue
from rankfall.verdict.signatures.catalogue import (
    FAMILIES,
    Catalogue,
    Signature,
    default_catalogue,
    load_user,
    parse,
    source,
)
from rankfall.verdict.signatures.matcher import best
from rankfall.verdict.signatures.patterns import required_words

FULL = tuple(each for family in FAMILIES for each in parse(source(family), origin=family))
CATALOGUE = Catalogue(FULL)

# Causes that no single line of text can show; docs/signatures.md says why.
NO_TEXT = {"slow_rank_timeout"}


def test_the_catalogue_is_large_and_at_least_half_of_its_examples_are_real() -> None:
    examples = [example for signature in FULL for example in signature.example]
    assert len(FULL) >= 180
    assert sum(example.real for example in examples) * 2 >= len(examples)


def test_ids_are_unique_over_all_families() -> None:
    assert [name for name, count in Counter(each.id for each in FULL).items() if count > 1] == []


def test_every_signature_has_examples_and_near_misses() -> None:
    assert [each.id for each in FULL if not each.example or not each.miss] == []


def test_a_real_example_names_what_printed_it() -> None:
    assert [each.id for each in FULL for example in each.example if example.real and not example.by] == []


def test_every_cause_has_a_signature_or_a_reason() -> None:
    uncovered = set(causes()) - {each.slug for each in FULL}
    assert uncovered == NO_TEXT
    text = (Path(__file__).parents[3] / "docs" / "signatures.md").read_text("utf-8")
    assert all(f"| `{slug}` |" in text for slug in uncovered)


@pytest.mark.parametrize("signature", FULL, ids=[each.id for each in FULL])
def test_its_examples_are_recognised_as_its_cause(signature: Signature) -> None:
    for example, where in product(signature.example, signature.where):
        hits = CATALOGUE.match_line(example.text.encode(), where)
        chosen = best(hits)
        assert signature in [hit.signature for hit in hits], f"{where}: {example.text}"
        assert chosen, f"{where}: {example.text}"
        assert chosen.signature.slug == signature.slug, f"{where}: {example.text}"


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "[default1]:",
        "2: ",
        "[1,3]<stderr>:",
        "node-1: ",
        "(train pid=123, ip=10.0.0.3) ",
        "2026-11-21T09:00:00.123456789Z ",
        "\x1b[31m",
        "Epoch 3:  95%|######### | 8692/9188 [30:57<01:45]\r",
    ],
)
def test_a_prefix_does_not_hide_a_library_message(prefix: str) -> None:
    for text, slug in (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total capacity",
            "gpu_oom",
        ),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory.",
            "checkpoint_corrupt",
        ),
        ("ModuleNotFoundError: No module named 'flash_attn_9'", "import_error"),
        ("ssh: connect to host gpu-07 port 22: Connection refused", "ssh_unreachable"),
    ):
        hit = best(CATALOGUE.match_line((prefix + text).encode()))
        assert hit is not None
        assert hit.signature.slug == slug


HARMLESS = """\
2026-11-21 09:00:00,123 INFO trainer step 1200 loss 2.13451 grad_norm 0.4412 lr 3.000e-04 tokens/s 51233
gpu-07:1234:1299 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[4] via P2P/CUMEM
NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=eth0 TORCH_NCCL_ASYNC_ERROR_HANDLING=1
finished: 0 errors, 0 warnings
retry_on_error: true
    raise ValueError("batch size must be positive")
[rank1]:     raise RuntimeError(f"CUDA out of memory. Tried to allocate 1 GiB")
    assert x.shape == y.shape, "shape mismatch: x and y"
    if isinstance(error, torch.cuda.OutOfMemoryError): print("RuntimeError: CUDA error: out of memory")
    # FileNotFoundError: [Errno 2] No such file or directory: when the cache is cold
  File "/opt/train/loader.py", line 32, in __getitem__
    self.logger.warning("ConnectionResetError: [Errno 104] will be retried")
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded
WARNING:torch.distributed.run:*****************************************
find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass.
Downloading shards: 100%|##########| 12/12 [00:10<00:00,  1.18it/s]
  warnings.warn("Detected call of lr_scheduler.step() before optimizer.step()")
  tensor-model-parallel-size ........................ 2
Traceback (most recent call last):
srun: job 4711 queued and waiting for resources
Restored all states from the checkpoint at step_1200
timeout: 600, backend: nccl, killed: false
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError
evaluation finished, 12 samples were not found in the cache
"""


@pytest.mark.parametrize("line", HARMLESS.splitlines())
def test_ordinary_lines_are_no_evidence(line: str) -> None:
    assert CATALOGUE.match_line(line.encode(), ("line", "exception", "kernel")) == []


def test_json_of_events_is_no_source_code() -> None:
    hit = best(
        CATALOGUE.match_line(b'            "message": "Back-off restarting failed container trainer in pod train-0",')
    )
    assert hit is not None
    assert hit.signature.slug == "controller_verdict"


def test_the_start_without_examples_reads_the_same_signatures() -> None:
    quick = default_catalogue().signatures
    assert [each.id for each in quick] == [each.id for each in FULL]
    assert [(a.pattern, a.unless, a.where, a.role) for a in quick] == [
        (a.pattern, a.unless, a.where, a.role) for a in FULL
    ]


def test_only_a_few_patterns_have_no_word_to_look_for() -> None:
    assert {
        each.id for each in FULL if {"line", "launcher"} & set(each.where) and required_words(each.pattern) is None
    } == set()


def test_a_users_file_adds_and_replaces() -> None:
    text = """
[[signature]]
id = "gpu_oom.torch"
slug = "gpu_oom"
role = "primary"
where = ["line"]
specificity = 90
pattern = 'OUT OF CARDS on (?P<node>\\S+)'
printed_by = "acme-train 3"
[[signature.example]]
text = "OUT OF CARDS on n7"
[[signature.miss]]
text = "out of cards"
"""
    changed = default_catalogue().extended(load_user(text, "mine.toml"))
    assert len(changed.signatures) == len(default_catalogue().signatures)
    (hit,) = changed.match_line(b"OUT OF CARDS on n7")
    assert hit.groups == {"node": "n7"}
    assert default_catalogue().match_line(b"OUT OF CARDS on n7") == []


def test_what_only_the_kernel_can_know_is_read_from_its_lines_by_signatures_that_exist():
    assert {each.id for each in FULL} >= KERNEL_SIGNATURE_IDS


def test_the_program_reads_the_signatures_of_the_toml_files() -> None:
    """After a change of one: ``.venv/bin/python scripts/signatures.py``."""
    packed = Path(catalogue.__file__).with_name("data") / catalogue.PACKED
    assert packed.read_text("utf-8") == catalogue.pack()
    bare = [msgspec.structs.replace(each, example=(), miss=()) for each in FULL]
    assert list(default_catalogue().signatures) == bare


def test_words_are_found_by_their_beginnings_as_by_the_automaton_of_all(monkeypatch) -> None:
    lines = [example.text.encode() for each in FULL[::4] for example in (*each.example, *each.miss)]
    monkeypatch.setattr("rankfall.verdict.signatures.matcher._FEW", 10 * sum(map(len, lines)))
    begun = Catalogue(FULL)
    found = [[hit.signature.id for hit in begun.match_line(line, begun.STREAM)] for line in lines]
    assert begun.matcher(begun.STREAM).words._set is None
    monkeypatch.setattr("rankfall.verdict.signatures.matcher._FEW", 0)
    compiled = Catalogue(FULL)
    assert found == [[hit.signature.id for hit in compiled.match_line(line, compiled.STREAM)] for line in lines]
    assert compiled.matcher(compiled.STREAM).words._set is not None
    assert sum(map(bool, found)) > 100
