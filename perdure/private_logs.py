"""Logs without content, for workers whose Temporal is encrypted: an error's text may quote it."""

from __future__ import annotations

import contextlib
import logging
import traceback
from typing import TYPE_CHECKING, Any

from temporalio.exceptions import ApplicationError

from perdure.encryption import key_error

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGERS = (
    "perdure.runs",
    "perdure.tools",
    "temporalio.activity",
    "temporalio.workflow",
    "temporalio.worker._activity",
    "temporalio.worker._workflow",
    "temporalio.worker._workflow_instance",
)
"""Who reports errors of calls and runs. What a tool logs itself (``ctx.logger``) is its own."""


@contextlib.contextmanager
def without_content() -> Iterator[None]:
    """While entered, errors are logged by their types and places, without their messages."""
    contentless = _Contentless()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(contentless)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(contentless)


class _Contentless(logging.Filter):
    """Keeps of an error where it was raised, its types, and a code or key id of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_named, record.args))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.exc_info = None
            key = key_error(error)
            # About keys a worker's log is where people look; that message holds ids alone.
            record.exc_text = f"{key} [{key.code}]" if key else "\n".join(_places(error))
        return True


def _named(value: Any) -> Any:
    return type(value).__name__ if isinstance(value, BaseException) else value


def _places(error: BaseException) -> Iterator[str]:
    """Lines about an error and what it came of, innermost last, as a traceback has them."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _places(cause)
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        yield f'  File "{code.co_filename}", line {line}, in {code.co_qualname}'
    yield f"{_kind(error)} (its message is not logged: payloads are encrypted)"


def _kind(error: BaseException) -> str:
    wire = error.details[0] if isinstance(error, ApplicationError) and error.details else None
    code = wire.get("code") if isinstance(wire, dict) else None
    name = getattr(error, "type", None) or type(error).__name__
    return f"{name} [{code}]" if code else str(name)
