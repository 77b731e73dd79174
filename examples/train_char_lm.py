"""Trains a small character-level transformer with DDP over gloo on the sources of the Python standard library.

The text is read from this machine's own Python, so nothing is shipped and nothing is fetched. Started by torchrun or by Rankfall::

    torchrun --nproc-per-node 2 examples/train_char_lm.py --steps 120
    rankfall run --nnodes 2 --nproc-per-node 2 examples/train_char_lm.py --checkpoint-dir checkpoints

Batches depend on seed, step and rank only: a run that was resumed from a checkpoint computes what an undisturbed one computes.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from demo_fault import maybe_fall
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

try:
    from rankfall_inside import progress
except ImportError:  # plain torchrun: nobody listens

    def progress(step: int | None = None, phase: str | None = None) -> None:
        """Tell nobody."""


CONTEXT = 64  # characters that the model sees
WIDTH = 96
HEADS = 4
LAYERS = 2
KEEP = 2  # checkpoints that stay
TEXT_BYTES = 2_000_000


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences a rank and step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--checkpoint-dir", type=Path, default=None, help="no checkpoints without it")
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def corpus() -> tuple[Tensor, int]:
    """The text as indices into its alphabet, shape (characters,), and the size of the alphabet."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) > TEXT_BYTES:
            break
    present = sorted(set(text))
    index = torch.zeros(256, dtype=torch.long)
    index[torch.tensor(present)] = torch.arange(len(present))
    return index[torch.frombuffer(text, dtype=torch.uint8).long()], len(present)


class CharLM(nn.Module):
    """A decoder-only transformer over characters: (batch, CONTEXT) indices -> (batch, CONTEXT, alphabet) logits."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, alphabet)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of the next character at every place."""
        hidden = self.characters(inputs) + self.places
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))  # type: ignore[no-any-return]


def batch(text: Tensor, *, step: int, rank: int, seed: int, size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one step, both (size, CONTEXT)."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + step * 1_009 + rank)
    starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=draw)
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint that is either whole or absent, and drop those that are too old."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:06d}.pt"
    scratch = target.with_suffix(".tmp")
    with scratch.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(target)
    for old in sorted(folder.glob("step-*.pt"))[:-KEEP]:
        old.unlink()


def newest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; damaged ones are passed over with a word."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except Exception as error:  # noqa: BLE001 - a damaged file shows itself in many ways
            print(f"checkpoint {path.name} cannot be read ({type(error).__name__}), trying an older one", flush=True)
        else:
            return state
    return None


def train(options: argparse.Namespace, *, rank: int, world: int, say: Callable[[str], None]) -> None:
    """All steps, from the newest checkpoint on."""
    torch.manual_seed(options.seed)
    text, alphabet = corpus()
    model = CharLM(alphabet)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    # Rank 0 alone reads, so nodes need not share the folder.
    found = [newest(options.checkpoint_dir) if rank == 0 and options.checkpoint_dir else None]
    dist.broadcast_object_list(found)
    first = 1
    if found[0] is not None:
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
        first = found[0]["step"] + 1
        say(f"resumed from the checkpoint of step {first - 1}")
    parallel = DistributedDataParallel(model)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text):,} characters, {world} ranks")
    began = time.monotonic()
    for step in range(first, options.steps + 1):
        maybe_fall(rank=rank, step=step)
        inputs, targets = batch(text, step=step, rank=rank, seed=options.seed, size=options.batch_size)
        loss = nn.functional.cross_entropy(parallel(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress(step)
        if step % options.log_every == 0 or step == options.steps:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            rate = (step - first + 1) * options.batch_size * CONTEXT * world / (time.monotonic() - began)
            say(f"step {step}/{options.steps} loss {mean.item() / world:.4f} {rate:,.0f} characters/s")
        if options.checkpoint_dir and rank == 0 and step % options.checkpoint_every == 0:
            save(
                options.checkpoint_dir,
                step,
                {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            )


def main() -> None:
    """One rank's whole life."""
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def say(text: str) -> None:
        if rank in (0, world - 1):
            print(text, flush=True)

    try:
        train(options, rank=rank, world=world, say=say)
        say("done")
    finally:
        # After a fault the peers are gone and there is nothing left to agree on.
        if sys.exc_info()[0] is None:
            dist.barrier()
            # DDP's reducer sits in a reference cycle and holds the process group, whose threads must end before Python does.
            gc.collect()
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
