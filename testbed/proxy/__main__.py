"""``python -m testbed.proxy``: the fault proxy as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import click

from testbed.errors import TestbedError
from testbed.pki import Pair
from testbed.proxy.hub import Settings
from testbed.proxy.proxy import allow_many_files
from testbed.proxy.remote import Listener
from testbed.proxy.server import Server

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where clients come; port 0 = any that is free.")
@click.option("--upstream", required=True, metavar="URL", help="The real API server: https://HOST:PORT.")
@click.option("--ca", required=True, type=_FILE, help="The server's certificate is checked against this.")
@click.option("--cert", required=True, type=_FILE, help="What clients are shown.")
@click.option("--key", required=True, type=_FILE, help="Its key.")
@click.option("--client-ca", type=_FILE, help="Clients may show certificates of this authority.")
@click.option(
    "--front-cert", type=_FILE, help="Front-proxy client certificate, by which the server learns whose they are."
)
@click.option("--front-key", type=_FILE, help="Its key.")
@click.option("--control", type=click.Path(path_type=Path), help="Unix socket on which faults are ordered.")
def main(  # noqa: PLR0917 - click gives them by name
    listen: str,
    upstream: str,
    ca: Path,
    cert: Path,
    key: Path,
    client_ca: Path | None,
    front_cert: Path | None,
    front_key: Path | None,
    control: Path | None,
) -> None:
    """Stand between clients and an API server, and misbehave when told to."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter("write HOST:PORT", param_hint="--listen")
    front = Pair(front_cert, front_key) if front_cert is not None and front_key is not None else None
    try:
        settings = Settings(
            upstream=upstream,
            authority=ca,
            serving=Pair(cert, key),
            host=host.strip("[]"),
            port=int(port),
            clients=client_ca,
            front=front,
        )
        allow_many_files()
        asyncio.run(_serve(settings, control))
    except TestbedError as error:
        raise click.ClickException(str(error)) from error


async def _serve(settings: Settings, control: Path | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = Server(settings)
    listener = asyncio.create_task(Listener(server, control).serve()) if control is not None else None
    print(f"listening on {settings.host}:{server.port}", flush=True)
    try:
        wait = asyncio.create_task(ended.wait())
        await asyncio.wait([task for task in (wait, listener) if task is not None], return_when=asyncio.FIRST_COMPLETED)
        if listener is not None and listener.done():
            # It ends only when it fails, and then nobody could order anything.
            listener.result()
        wait.cancel()
    finally:
        if listener is not None:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener
        await server.close()


if __name__ == "__main__":
    main()
