"""The job of every case: ranks that wait for each other and then do what the case's story says of them. No torch: it has to start in a second."""

from __future__ import annotations

from typing import Final

# The story is JSON: attempt -> rank -> what to do; ``*`` is any. A rank that has met all others does what its line says:
#   end             leave with 0
#   exit:N          leave with N
#   raise           an exception of its own
#   kill:NAME       send itself a signal
#   stay            wait for the end that somebody else makes
#   absent          do not come to the meeting, and stay
# A process without RANK (a role outside the world) is called ``slot N``, and meets nobody.
PROGRAM: Final = """
import json, os, signal, socket, sys, time

attempt = os.environ["RANKFALL_ATTEMPT"]
rank = os.environ.get("RANK") or "slot " + os.environ["RANKFALL_SLOT"]
story = json.loads(os.environ["STORY"])
told = story.get(attempt, story.get("*", {}))
what, _, value = told.get(rank, told.get("*", "end")).partition(":")
# What every launcher owes a rank, whatever the backend.
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANKFALL_ROLE", "RANKFALL_SLOT")
place = {name: os.environ.get(name) for name in names}
place["master"] = all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
print(f"{rank} of attempt {attempt} begins", json.dumps(place), flush=True)


def meet():
    # All are there, or nobody goes on: what falls then falls among ranks that were all seen.
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    others = int(os.environ["WORLD_SIZE"]) - 1
    if rank == "0":
        with socket.create_server(("", port), family=socket.AF_INET) as server:
            came = [server.accept()[0] for _ in range(others)]
            for one in came:
                one.sendall(b"go")
        return
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as one:
                one.settimeout(None)
                if one.recv(2):
                    return
        except OSError:
            time.sleep(0.05)


def step():
    if what == "raise":
        raise ValueError("bad sample 17")
    if what == "exit":
        sys.exit(int(value))
    if what == "kill":
        os.kill(os.getpid(), getattr(signal, value))
    while what in {"stay", "absent"}:
        # Again: being asked for its stacks interrupts it.
        signal.pause()


if rank.isdigit() and what != "absent":
    meet()
print("step 1", flush=True)
step()
print("done", flush=True)
"""
