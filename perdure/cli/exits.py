"""What an error means to the shell: its exit code and its line on standard error."""

from __future__ import annotations

import sys

from perdure.checkpoint_bridge.errors import (
    ApprovalNotFoundError,
    CheckpointNotFoundError,
    ConfigurationError,
    ForkBoundaryError,
    NotATurnError,
    PerdureError,
    SessionAwaitingApprovalError,
    SessionExistsError,
    SessionIdInvalidError,
    SessionNotFoundError,
)
from perdure.cli.text import one_line

DONE = 0
FAILED = 1
USAGE = 2
AWAITING_APPROVAL = 3

_USAGE_ERRORS = (
    ConfigurationError,
    SessionIdInvalidError,
    SessionNotFoundError,
    CheckpointNotFoundError,
    ApprovalNotFoundError,
    ForkBoundaryError,
    NotATurnError,
    SessionExistsError,
)
"""The command line named something that is not there, or that cannot be."""


def exit_code_of(error: PerdureError) -> int:
    """The exit code of an error (the table is in :mod:`perdure.cli.main`)."""
    if isinstance(error, SessionAwaitingApprovalError):
        return AWAITING_APPROVAL
    return USAGE if isinstance(error, _USAGE_ERRORS) else FAILED


def tell(error: PerdureError) -> int:
    """Print an error as one line, its hint as another, and give its exit code."""
    complain(f"{error.message} [{error.code}]", hint_of(error))
    return exit_code_of(error)


def complain(message: str, hint: str = "") -> None:
    """Print ``perdure: MESSAGE`` and a hint to standard error."""
    print(f"perdure: {one_line(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {one_line(hint)}", file=sys.stderr)


def hint_of(error: PerdureError) -> str:
    """The hint, where it says more than that the named option is wrong."""
    # The message about an id says already what an id is.
    said = (ConfigurationError.hint, SessionIdInvalidError.hint)
    return "" if error.hint in said else error.hint
