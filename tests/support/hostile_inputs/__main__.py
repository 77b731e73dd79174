"""Prints one hostile text: ``python -m hostile_inputs NAME [BYTES]``."""

from __future__ import annotations

import sys

from support.hostile_inputs import INPUTS

if __name__ == "__main__":
    chosen = INPUTS[sys.argv[1]]
    for piece in chosen.pieces(int(sys.argv[2]) if len(sys.argv) > 2 else chosen.size):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
