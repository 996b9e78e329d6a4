"""``perdure codec-server``: shows encrypted payloads in the Temporal UI."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.keyring import KEYS_VARIABLE, Keyring
from perdure.checkpoint_bridge.option_checks import text
from perdure.cli import exits
from perdure.cli.output import note
from perdure.cli.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(app: Starlette, listening: socket.socket, origins: tuple[str, ...]) -> None:
    stop = StopSignals()
    async with stop, _answering(app, listening) as answering:
        where = f"for the Temporal UI at {', '.join(origins)}"
        note(f"Codec server {_address(listening)} {where}")
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({answering, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()


@contextlib.asynccontextmanager
async def _answering(app: Starlette, listening: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Answer requests while the block runs; the task ends earlier when it cannot."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the program has its own way to end

    # Its logs go to the program's own handlers, if it has any.
    config = uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, lifespan="off"
    )
    server = Server(config)
    answering = asyncio.create_task(server.serve([listening]))
    try:
        yield answering
    finally:
        server.should_exit = True
        await answering


class UiCodec:
    """Decrypts for the UI of the development server that ``perdure dev`` starts, and no other."""

    def __init__(self, keys: Keyring) -> None:
        from perdure.codec_server import codec_app
        from perdure.encryption import EncryptionCodec

        self._app_for = partial(codec_app, EncryptionCodec(keys))
        self._listening = _listen("127.0.0.1", 0)
        self.arguments = ("--ui-codec-endpoint", _address(self._listening))
        """What tells the development server where it is."""

    @contextlib.asynccontextmanager
    async def serving(self, ui: str | None) -> AsyncIterator[None]:
        """Answer the pages of a UI while the block runs."""
        # With the name that people type, too.
        origins = () if ui is None else (ui, ui.replace("127.0.0.1", "localhost"))
        async with _answering(self._app_for(origins=origins), self._listening):
            yield


def ui_codec() -> UiCodec | None:
    """What decrypts for the UI; without keys, and where it is not installed, nothing."""
    keys = Keyring.from_environment()
    if keys is None:
        return None
    try:
        return UiCodec(keys)
    except ConfigurationError as error:
        note(f"The Temporal UI will show ciphertext. {error.message} {error.hint}")
        return None
