"""The public Python API: submit, watch, ask why, cancel. One async client; the sync one is a thin face of it.

Every answer is read from the run directory; a client holds no truth of its own and can be thrown away at any moment. No async method
blocks the event loop: files are read in a thread, waiting is asyncio's.
"""

from rankfall.client.client import Client, complete, create_run
from rankfall.client.run import Run
from rankfall.client.sync import SyncClient, SyncRun

__all__ = ["Client", "Run", "SyncClient", "SyncRun", "complete", "create_run"]
