"""Connections that belong to nobody: one whose making was cancelled in its very last step is open, and no client knows of it.

Called at the end of an event loop of our own, when every client in it is closed; in a loop that others use it would close theirs.
"""

from __future__ import annotations

import asyncio
from typing import Any


async def drop_connections() -> int:
    """Close every connection that is still open in this loop; how many there were.

    The loop's own table is asked, which asyncio keeps for its selector loops only; elsewhere nothing is found.
    """
    loop: Any = asyncio.get_running_loop()
    # Closed ones leave the table one turn of the loop later.
    await asyncio.sleep(0)
    left = [one for one in list(getattr(loop, "_transports", {}).values()) if not one.is_closing()]
    for transport in left:
        transport.abort()
    await asyncio.sleep(0)
    return len(left)
