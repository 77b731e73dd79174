"""A rank of JAX on CPUs; its number and world come from the environment that the launcher sets."""

import os

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from steps import train

if __name__ == "__main__":
    rank = int(os.environ["ZOO_PROCESS"])
    jax.distributed.initialize(
        f"127.0.0.1:{os.environ['ZOO_PORT']}",
        num_processes=int(os.environ["ZOO_WORLD"]),
        process_id=rank,
        heartbeat_timeout_seconds=10,
    )
    train(rank, lambda: multihost_utils.process_allgather(jnp.ones(4)))
