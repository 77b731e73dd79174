"""Makes the pictures of the documentation from a real failed run: a terminal as SVG, the report in a browser as PNG.

Runs a job of 2 nodes x 2 ranks whose rank 2 raises an exception, then ``rankfall why`` in a pseudo-terminal and
``rankfall report`` in Chromium; without Chromium the second picture stays as it is.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "verdict.svg"
SCREENSHOT = ROOT / "docs" / "images" / "report.png"
# Of the window, in CSS pixels; the page ends below the time line of the ranks.
WINDOW = (1000, 850)
COLUMNS = 92
# Pixels of one character cell and of the border.
CELL_WIDTH, CELL_HEIGHT, BORDER = 8.4, 18, 16
SGR = re.compile(r"\x1b\[([0-9;]*)m")
STYLES = {
    "1": "font-weight:bold",
    "2": "opacity:.6",
    "1;31": "font-weight:bold;fill:#ff7b72",
    "32": "fill:#7ee787",
    "33": "fill:#e3b341",
}
TRAIN = """\
import os
import time

rank = int(os.environ["RANK"])
for step in range(1, 200):
    print(f"step {step}", flush=True)
    if rank == 2 and step == 5:
        raise ValueError("sample 1184 of shard 17 has no label")
    time.sleep(0.1)
"""
RUN = ("run", "--launcher", "plain", "--nnodes", "2", "--nproc-per-node", "2", "train.py")


def spans(line: str) -> Iterator[tuple[str, str]]:
    """Splits a line with SGR attributes into pieces of text, each with its CSS style.

    Args:
        line: Line without its newline.
    """
    style = ""
    parts = SGR.split(line)
    for number, part in enumerate(parts):
        if number % 2:
            style = STYLES.get(part, "")
        elif part:
            yield part, style


def svg(text: str) -> str:
    """Returns the picture of a terminal with this text.

    Args:
        text: Lines with SGR attributes.
    """
    lines = text.rstrip("\n").split("\n")
    width = COLUMNS * CELL_WIDTH + 2 * BORDER
    height = len(lines) * CELL_HEIGHT + 2 * BORDER
    rows = []
    for number, line in enumerate(lines):
        pieces = "".join(
            f'<tspan style="{style}">{escape(part)}</tspan>' if style else escape(part) for part, style in spans(line)
        )
        y = BORDER + CELL_HEIGHT * (number + 0.75)
        rows.append(f'<text x="{BORDER}" y="{y:g}" xml:space="preserve">{pieces}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n'
        f'<g fill="#e6edf3" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14">\n'
        + "\n".join(rows)
        + "\n</g>\n</svg>\n"
    )


def in_terminal(command: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    """Runs a command in a pseudo-terminal of ``COLUMNS`` columns and returns its output."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL)
    os.close(terminal)
    output = b""
    try:
        while data := os.read(controller, 1 << 16):
            output += data
    except OSError:  # EIO: the command has closed the terminal
        pass
    os.close(controller)
    process.wait()
    return output.decode().replace("\r\n", "\n")


def screenshot(page: Path) -> None:
    """Writes the picture of a page as a browser shows it.

    Args:
        page: File of the report.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from support.browser import chromium, missing  # noqa: PLC0415 - the tests' own browser

    if absent := missing():
        print(f"{SCREENSHOT.relative_to(ROOT)} stays as it is: {absent}")
        return
    width, height = WINDOW
    with chromium() as window:
        window.open(page, width=width, height=height)
        window.driver.save_screenshot(str(SCREENSHOT))
    print(SCREENSHOT.relative_to(ROOT))


def main() -> int:
    """Runs the job and writes the pictures."""
    program = str(Path(sys.executable).parent / "rankfall")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "train.py").write_text(TRAIN)
        env = os.environ | {"RANKFALL_HOME": str(folder / "home"), "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        subprocess.run([program, *RUN], cwd=folder, env=env, capture_output=True, check=False)
        answer = in_terminal([program, "why"], cwd=folder, env=env).replace(f"{folder}/", "")
        page = folder / "report.html"
        subprocess.run([program, "report", "-o", str(page)], cwd=folder, env=env, capture_output=True, check=True)
        page.write_text(page.read_text().replace(f"{folder}/", ""))
        PICTURE.write_text(svg(f"$ rankfall why\n{answer}"))
        print(PICTURE.relative_to(ROOT))
        screenshot(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
