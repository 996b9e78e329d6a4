"""Where every program of ours ends.

A Python process in which temporalio ran can die of a segmentation fault or of a fatal
``PyGILState_Release`` while the interpreter finalises, after its work is done: threads of the
native core are still running then. Exit codes 139 and 134 would replace the real one. So no
program of ours returns into the interpreter's finalisation: it ends in :func:`leave`, which does
by itself what finalisation does that a user can notice, and then ends the process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_INTERRUPTED",
    "EXIT_TERMINATED",
    "end_now",
    "leave",
    "run_program",
]

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
"""128 + SIGINT: what a shell reports for a program that Ctrl-C ended."""
EXIT_TERMINATED = 143
"""128 + SIGTERM."""
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of our output (``head``, say) went away, which is no failure."""


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run ``main`` and leave with the exit code that it returns (``None`` is 0).

    Ctrl-C and a closed pipe end the program quietly with the codes that a shell knows, a
    ``SystemExit`` with its own code, any other exception with its traceback and code 1.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by whoever started us. The lowest free descriptor is its own, which no file
            # of ours should get: something may still write to it.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - stays
    leave(_exit_code_of(main))


def leave(code: int) -> NoReturn:
    """Run the functions registered with :mod:`atexit`, then :func:`end_now`.

    Exporters of telemetry and embedded services register their clean-up there.
    """
    try:
        # atexit has no public way to run its functions; CPython has had this one since 2.x.
        atexit._run_exitfuncs()  # noqa: SLF001 - the only way
    finally:
        end_now(code)  # whatever one of them raised has been printed


def end_now(code: int) -> NoReturn:
    """Collect garbage, flush logs and output, and end the process with ``code`` at once.

    The collection runs finalizers (files, temporary folders) while the interpreter is whole.
    """
    gc.collect()
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe, a full disk or a missing stream: there is nobody left to tell.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code & 0xFF)


def _exit_code_of(main: Callable[[], int | None]) -> int:
    try:
        code = main() or 0
        sys.stdout.flush()  # here, so that a closed pipe shows in the exit code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except SystemExit as exit_:
        return _code_of_exit(exit_)
    except BaseException:  # noqa: BLE001 - whatever it is, the program ends in one place
        traceback.print_exc()
        return EXIT_FAILED
    return code


def _code_of_exit(exit_: SystemExit) -> int:
    """What the interpreter would make of it: an int, nothing, or a message for stderr."""
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    print(exit_.code, file=sys.stderr)
    return EXIT_FAILED
