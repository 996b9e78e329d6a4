"""Options that several commands share, and what they say together: where the sessions are."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.format.stable_json import parse_json
from perdure.checkpoint_bridge.option_checks import text

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

DEFAULT_STORE = "sqlite:///perdure.db"
DEFAULT_TASK_QUEUE = "perdure"
"""The same as ``perdure.connection.DEFAULT_TASK_QUEUE``, without importing temporalio."""

MAX_COUNT = 10**9

_WHERE = "Where"

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="PERDURE_STORE",
        metavar="URL",
        help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.",
        rich_help_panel=_WHERE,
    ),
]
TemporalOption = Annotated[
    str | None,
    typer.Option(
        "--temporal",
        metavar="HOST:PORT",
        help="Temporal's address; default: TEMPORAL_ADDRESS or temporal.toml, else localhost:7233.",
        show_default=False,
        rich_help_panel=_WHERE,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Temporal namespace; default: TEMPORAL_NAMESPACE or temporal.toml, else default.",
        show_default=False,
        rich_help_panel=_WHERE,
    ),
]
TaskQueueOption = Annotated[
    str,
    typer.Option(
        "--task-queue",
        envvar="PERDURE_TASK_QUEUE",
        metavar="NAME",
        help="Where workers serve the agents.",
        rich_help_panel=_WHERE,
    ),
]
MirrorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--mirror",
        envvar="PERDURE_MIRROR",
        metavar="ADDRESS",
        help="A store that gets every save: lousho-sqlite:FILE, lousho-files:DIRECTORY, or the "
        "URL of another store of ours. Repeatable.",
        show_default=False,
        rich_help_panel=_WHERE,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, max=MAX_COUNT, help="At most so many.", show_default=False),
]
FullOption = Annotated[bool, typer.Option("--full", help="Shorten nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print strict JSON.")]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="Stop waiting after this time; the run goes on.",
        show_default=False,
    ),
]
NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; the run goes on by itself.")
]


def _usual_task_queue() -> str:
    """The task queue of a command without the option; an empty variable is none, as for typer."""
    return os.environ.get("PERDURE_TASK_QUEUE") or DEFAULT_TASK_QUEUE


@dataclass(frozen=True)
class Where:
    """Which store, and which Temporal."""

    store: str
    temporal: str | None = None
    namespace: str | None = None
    task_queue: str = field(
        # A command without the option still names commands that have it.
        default_factory=_usual_task_queue
    )
    mirrors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what no service is asked about before work begins.

        Raises:
            ConfigurationError: the task queue has no name.
        """
        text("--task-queue", self.task_queue)

    def open_store(self, *, create: bool | Literal["late"] = False) -> SqlStore:
        """The store, not opened yet.

        Raises:
            ConfigurationError: its address is wrong, or it would end with this process.
        """
        from perdure.checkpoint_bridge.stores.sql_store import SqlStore

        store = SqlStore(self.store, create=create)
        if store.database.in_memory:
            msg = f"The store {self.store!r} is in memory, where no other process finds it."
            raise ConfigurationError(msg, field="store", hint="Give a file: sqlite:///FILE.")
        return store

    def command(self, *words: str, store_only: bool = False) -> str:
        """A command line for people to copy, with the options that this one needed."""
        options: list[str] = []
        if self.store != os.environ.get("PERDURE_STORE", DEFAULT_STORE):
            options += ["--store", self.store]
        if not store_only:
            if self.temporal is not None:
                options += ["--temporal", self.temporal]
            if self.namespace is not None:
                options += ["--namespace", self.namespace]
            if self.task_queue != _usual_task_queue():
                options += ["--task-queue", self.task_queue]
            if self.mirrors != tuple(os.environ.get("PERDURE_MIRROR", "").split()):
                options += [word for each in self.mirrors for word in ("--mirror", each)]
        return shlex.join(["perdure", *words, *options])


def json_option(name: str, given: str) -> Any:
    """Read an option's JSON.

    Raises:
        ConfigurationError: it is not JSON (``field`` names the option).
    """
    try:
        return parse_json(given)
    except ValueError as error:
        msg = f"{name} is not JSON: {error}"
        hint = "Quote it for the shell, such as '{\"key\": 1}'; a text is '\"text\"'."
        raise ConfigurationError(msg, field=name, hint=hint) from None


def seconds_option(name: str, value: float | None) -> float | None:
    """Check a number of seconds.

    Raises:
        ConfigurationError: it is not above 0.
    """
    if value is not None and not (math.isfinite(value) and value > 0):
        msg = f"{name} is a number of seconds above 0, not {value:g}."
        raise ConfigurationError(msg, field=name)
    return value
