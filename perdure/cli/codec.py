"""``perdure codec-server``: shows encrypted payloads in the Temporal UI."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.keyring import KEYS_VARIABLE, Keyring
from perdure.checkpoint_bridge.option_checks import text
from perdure.cli import exits
from perdure.cli.output import note
from perdure.cli.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette

PORT = 8234
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def codec_server(
    *,
    host: Annotated[str, typer.Option("--host", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = PORT,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="PERDURE_CODEC_TOKEN",
            metavar="TOKEN",
            help="What requests bring as Authorization: Bearer TOKEN; needed beyond this machine.",
            show_default=False,
        ),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="URL",
            help="Where the Temporal UI is; default: a development server's. Repeatable.",
            show_default=False,
        ),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="Handle this namespace only. Repeatable.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Decrypt payloads for the Temporal UI and command line, with PERDURE_ENCRYPTION_KEYS."""
    from perdure.codec_server import UI_ORIGINS, codec_app
    from perdure.encryption import EncryptionCodec

    keys = Keyring.from_environment()
    if keys is None:
        msg = f"A codec server needs the keys: {KEYS_VARIABLE} is not set."
        raise ConfigurationError(msg, field="encryption", hint=f"{KEYS_VARIABLE}=ID:BASE64,…")
    if token is not None:
        text("--token", token)
    elif host not in _LOOPBACK:
        msg = f"Whoever reaches {host} could decrypt: a codec server there needs a token."
        raise ConfigurationError(msg, field="--token", hint="Give --token or PERDURE_CODEC_TOKEN.")
    allowed = tuple(origins or UI_ORIGINS)
    app = codec_app(
        EncryptionCodec(keys), token=token, origins=allowed, namespaces=namespaces or ()
    )
    asyncio.run(_serve(app, _listen(host, port), allowed))
    return exits.DONE


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        msg = f"The codec server cannot listen at {host}:{port}: {error.strerror or error}"
        raise ConfigurationError(msg, field="--port") from error


async def _serve(app: Starlette, listening: socket.socket, origins: tuple[str, ...]) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the program has its own way to end

    server = Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    host, port = listening.getsockname()[:2]
    stop = StopSignals()
    async with stop:
        serving = asyncio.create_task(server.serve([listening]))
        shown = f"[{host}]" if ":" in host else host
        note(f"Codec server http://{shown}:{port} for the Temporal UI at {', '.join(origins)}")
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        server.should_exit = True
        await serving
