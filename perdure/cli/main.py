"""The program ``perdure``: its commands, and the one place where it ends.

Exit codes:

====  =========================================================================================
code  meaning
====  =========================================================================================
0     done: the command did what it says; a run finished
1     failed: the run failed or was cancelled, the time to wait is over, the store or Temporal
      cannot be used, a decision came too late, a run that goes on is in the way
2     usage: the command line is wrong, or names what is not there: an option, JSON, an address, a
      session, a step, an approval, an agent, APP
3     awaiting approval: the run paused, or the session waits for a decision already
130   Ctrl-C
141   the reader of a pipe went away
143   SIGTERM (but a worker that SIGTERM stopped ends with 0)
====  =========================================================================================

Results go to standard output, everything else to standard error. An error leaves standard output
empty, also with ``--json``; its line is ``perdure: MESSAGE [CODE]``, and programs branch on the
exit code and the code in brackets.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure import __version__
from perdure.checkpoint_bridge.errors import PerdureError
from perdure.cli import (
    changing,
    codec,
    compacting,
    demo,
    exits,
    following,
    moving,
    pruning,
    reading,
    running,
    serving,
    setting_up,
    stopping,
    turns,
)
from perdure.cli.output import make_output_safe
from perdure.process import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="perdure",
    help="Durable agents on Temporal.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_TRY = "Try it, develop, serve"
_RUNS = "Runs"
_LOOK = "Look at sessions"
_CHANGE = "Change sessions"
_STORES = "Between stores"

for _panel, _name, _command in (
    (_TRY, "demo", demo.demo),
    (_TRY, "dev", serving.dev),
    (_TRY, "worker", serving.worker),
    (_TRY, "setup", setting_up.setup),
    (_TRY, "codec-server", codec.codec_server),
    (_RUNS, "run", running.run),
    (_RUNS, "approvals", reading.approvals),
    (_RUNS, "approve", running.approve),
    (_RUNS, "reject", running.reject),
    (_RUNS, "resume", running.resume),
    (_RUNS, "cancel", stopping.cancel),
    (_LOOK, "sessions", reading.sessions),
    (_LOOK, "show", reading.show_session),
    (_LOOK, "history", reading.history),
    (_LOOK, "events", following.events),
    (_LOOK, "transcript", following.transcript),
    (_LOOK, "outcome", turns.outcome),
    (_LOOK, "compare", reading.compare),
    (_CHANGE, "fork", changing.fork),
    (_CHANGE, "compact", compacting.compact),
    (_CHANGE, "end", stopping.end),
    (_CHANGE, "delete", changing.delete),
    (_CHANGE, "prune", pruning.prune),
    (_STORES, "export", reading.export),
    (_STORES, "import", moving.import_sessions),
    (_STORES, "mirror", moving.mirror),
):
    app.command(_name, rich_help_panel=_panel)(_command)


def _version(asked: bool) -> None:  # noqa: FBT001 - typer's callback
    if asked:
        print(f"perdure {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


# The classes of whichever click this typer works with.
_ClickError: Any = typer.BadParameter.__mro__[2]


def run(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; errors that are a user's are told in one line."""
    make_output_safe()
    try:
        for argument in arguments:
            argument.encode()
        command = typer.main.get_command(app)
        code = command.main(list(arguments), prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
    except PerdureError as error:
        return exits.tell(error)
    except UnicodeEncodeError:
        exits.complain("An argument is not text in UTF-8.")
        return exits.USAGE
    except typer.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        exits.complain("Not done.")
        return exits.FAILED
    except _ClickError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "perdure"
        exits.complain(error.format_message(), f"See `{path} --help`.")
        return int(error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{error.filename} cannot be used" if error.filename else "Output cannot be written"
        exits.complain(f"{what}: {error.strerror or error}")
        return exits.FAILED
    return code if isinstance(code, int) else exits.DONE


def main() -> None:
    """Run the command of ``sys.argv`` and leave with its exit code."""
    run_program(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()
