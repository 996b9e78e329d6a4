"""The one place where an error becomes retryable or not for Temporal."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.checkpoint_bridge.errors import (
    LogConflictError,
    PerdureError,
    ProviderError,
    RunFailedError,
    StorageError,
)
from perdure.checkpoint_bridge.redaction import safe_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
R = TypeVar("R")

WORKER_SHUTDOWN = "WorkerShutdown"
"""Type of the failure of a call that its worker gave up because it was told to stop."""

STORAGE_FAILED = StorageError.__name__
"""Type of the failure of an activity whose store was away."""


def to_failure(error: PerdureError, *, final: bool = False) -> ApplicationError:
    """The form in which an error of ours crosses Temporal.

    The error itself is its detail, so that clients can raise it again. ``final``: enough was
    tried, whatever kind of error it is.
    """
    retry_after = error.retry_after if isinstance(error, ProviderError) else None
    return ApplicationError(
        f"{error.message} [{error.code}]",
        error.to_wire(),
        type=type(error).__name__,
        non_retryable=final or not is_retryable(error),
        next_retry_delay=None if retry_after is None else timedelta(seconds=retry_after),
    )


def is_retryable(error: PerdureError) -> bool:
    """Whether doing the same again can help.

    A store that does not answer comes back; another writer's claim does not go away. Providers
    say of their own failures.
    """
    if isinstance(error, ProviderError):
        return error.retryable
    return isinstance(error, StorageError) and not isinstance(error, LogConflictError)


def boundary(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Let an activity raise errors of ours, and say so when it is its worker that stops it."""

    @functools.wraps(function)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await function(*args, **kwargs)
        except PerdureError as error:
            # Without the error's causes: what they say was not written for Temporal's history.
            raise to_failure(error).with_traceback(error.__traceback__) from None
        except asyncio.CancelledError:
            if activity.is_worker_shutdown() and not is_cancel_requested():
                msg = "The worker was told to stop in the middle of it."
                raise ApplicationError(msg, type=WORKER_SHUTDOWN) from None
            raise
        except (ApplicationError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - it ends no worker
            # A mistake of ours would be made again at every attempt: the run fails, and can be
            # resumed by a worker that has it mended.
            activity.logger.exception("%s failed unexpectedly", function.__name__)
            text = safe_text(error)
            msg = f"{function.__name__} failed unexpectedly: {type(error).__name__}: {text}"
            failure = to_failure(RunFailedError(msg))
            raise failure.with_traceback(error.__traceback__) from None

    return wrapper


def is_cancel_requested() -> bool:
    """Whether it is the run that stops the current activity, not its worker."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested
