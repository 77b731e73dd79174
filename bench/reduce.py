"""The reducer over a large job: 16,384 ranks with 5 pieces of evidence each."""

from __future__ import annotations

import time

from bench.common import Row, in_fresh_process, peak_mib

RANKS = 16_384
LIMIT_S, LIMIT_MIB = 3.0, 512.0


def measure() -> None:
    """Build the case, diagnose it, print seconds and peak MiB of the whole process."""
    from rankfall.model import Case, Evidence, RankFacts
    from rankfall.verdict.diagnose import diagnose

    second = 1_000_000_000
    ranks = tuple(
        RankFacts(rank=n, slot=n // 8, node=f"n{n // 8}", pid=n, state="ended", exit_code=1, ended_at=3 * second)
        for n in range(RANKS)
    )
    evidence = []
    for n in range(RANKS):
        for number in range(5):
            root = n == RANKS // 3 and number == 0
            evidence.append(
                Evidence(
                    id=f"{n}-{number}",
                    source="record",
                    slug="user_code_exception" if root else "peer_lost",
                    role="primary" if root else "secondary",
                    trust="inside",
                    rank=n,
                    slot=n // 8,
                    at=(1 if root else 2) * second,
                    uncertainty=0.001,
                    line=f"piece {number} of rank {n}",
                    fingerprint="root" if root else "lost",
                )
            )
    case = Case(world_size=RANKS, ranks=ranks, evidence=tuple(evidence))
    begin = time.perf_counter()
    diagnosis = diagnose(case)
    spent = time.perf_counter() - begin
    if diagnosis.verdict.rank != RANKS // 3:
        raise SystemExit("the reducer named the wrong rank")
    print(f"{spent:.3f} {peak_mib():.0f}")


def rows() -> list[Row]:
    """The rows of this part."""
    spent, mib = map(float, in_fresh_process("reduce"))
    return [
        Row(
            f"diagnose, {RANKS:,} ranks x 5 pieces",
            f"{spent:.2f} s, {mib:.0f} MiB",
            f"{LIMIT_S:.0f} s, {LIMIT_MIB:.0f} MiB",
            spent <= LIMIT_S and mib <= LIMIT_MIB,
            "one call in a fresh process; memory is the whole process with its input",
        )
    ]


if __name__ == "__main__":
    measure()
