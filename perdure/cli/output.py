"""Where output goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.format.stable_json import to_stored_text
from perdure.cli.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import Console, RenderableType

_SURROGATE = re.compile("[\ud800-\udfff]")

PLAIN_WIDTH = 4000
"""Columns of output that is no terminal: wide enough to cut and wrap nothing that matters."""


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON that can be written as UTF-8: no NaN, lone surrogates escaped."""
    if indent is None:
        return to_stored_text(value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except (ValueError, RecursionError):
        return to_stored_text(value)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one JSON document: on one line into a pipe, indented on a terminal."""
    text = json_text(value, indent=2 if sys.stdout.isatty() else None)
    sys.stdout.flush()
    # Bytes, because JSON is UTF-8 whatever the locale's encoding is.
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        print(text)
    else:
        binary.write(f"{text}\n".encode())
        binary.flush()


def print_text(text: str) -> None:
    """Print a text as it is into a pipe, made harmless on a terminal."""
    print(clean(text) if sys.stdout.isatty() else _SURROGATE.sub("\ufffd", text))


def note(message: str) -> None:
    """Tell something that is not the result."""
    print(clean(message), file=sys.stderr, flush=True)


def show(*parts: RenderableType) -> None:
    """Print tables and texts for people."""
    show_on(sys.stdout, *parts)


def show_on(stream: TextIO, *parts: RenderableType) -> None:
    """Print tables and texts for people to a stream."""
    if stream.isatty():
        console = console_for(stream)
        for part in parts:
            console.print(part)
        return
    buffer = io.StringIO()
    console = console_for(buffer)
    for part in parts:
        console.print(part)
    # The padding of a table's last column is nothing that a pipe should carry.
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    stream.write("".join(f"{line}\n" for line in lines))
    stream.flush()


def console_for(stream: TextIO) -> Console:
    """A console that is plain, and never wraps an id, where the stream is no terminal."""
    from rich.console import Console

    if stream.isatty():
        return Console(file=stream, highlight=False, emoji=False, markup=False)
    return Console(
        file=stream,
        width=PLAIN_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
        no_color=True,
        force_terminal=False,
    )


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """Show that something is going on: a spinner on a terminal, otherwise a line."""
    if not sys.stderr.isatty():
        note(f"{text}…")
        yield
        return
    with console_for(sys.stderr).status(clean(text) + "…"):
        yield


def make_output_safe() -> None:
    """Let no character that the locale's encoding lacks end a command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
