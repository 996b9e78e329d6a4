"""Errors of what a run needs: stores, keys, model providers, Temporal."""

from __future__ import annotations

from typing import Any

from perdure.checkpoint_bridge.errors.base import PerdureError


class ClientClosedError(PerdureError):
    """The client was closed. What it started goes on."""

    code = "PERDURE_CLIENT_CLOSED"
    hint = "Connect again."


class StorageError(PerdureError):
    """The store cannot be opened, read or written."""

    code = "LOUSHO_STORAGE_FAILED"
    hint = "Check the store's address, its permissions and its disk."


class LogConflictError(StorageError):
    """Another writer has put something else at this place of the log."""

    code = "PERDURE_LOG_CONFLICT"
    hint = "One run writes to a session at a time; open the session again."

    @classmethod
    def of(cls, session_id: str, *, kept: bool) -> LogConflictError:
        """For a run whose session has another writer, or is not ``kept`` where the run looks."""
        if kept:
            return cls(f"Session {session_id!r} belongs to a newer run; this one may not write.")
        hint = "Give all workers of a task queue the same store."
        return cls(
            f"The worker's store does not hold session {session_id!r} for this run: the session "
            "was deleted, or it is in another store.",
            hint=hint,
        )


class EntryStoreError(PerdureError):
    """The attached store of entries raised; the run fails, and its session can be resumed."""

    code = "PERDURE_ENTRY_STORE"
    hint = "Mend that store, then go on with the session: it gets what it lacks first."


class EncryptionKeyError(PerdureError):
    """What is stored or sent was encrypted with a key that is not here."""

    code = "PERDURE_ENCRYPTION_KEY"
    hint = "Give PERDURE_ENCRYPTION_KEYS all keys that were ever used, the newest first."
    _facts = ("key_id",)

    def __init__(
        self, message: str, *, key_id: str = "", code: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.key_id = key_id


class ProviderError(PerdureError):
    """The model provider refused or failed.

    ``status`` is the HTTP status or ``None`` (network error); ``retry_after`` is in seconds;
    ``usage``, in the format's names, is what the failed attempt cost, where the provider said so.
    """

    code = "LOUSHO_PROVIDER_REQUEST_FAILED"
    hint = "Read the provider's message; a retryable error is retried by itself."
    _facts = ("status", "retryable", "retry_after")

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        usage: dict[str, Any] | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.usage = usage
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after


class RateLimitedError(ProviderError):
    """HTTP 429; retried after ``retry_after`` seconds when the provider names them."""

    code = "LOUSHO_PROVIDER_RATE_LIMITED"
    hint = "Wait, or ask the provider for a higher limit."


class MissingApiKeyError(ProviderError):
    """No key for the provider; raised before any request."""

    code = "LOUSHO_PROVIDER_MISSING_API_KEY"
    hint = "Set the provider's API key in the environment of the worker."


class TemporalUnavailableError(PerdureError):
    """Temporal does not answer at the address."""

    code = "PERDURE_TEMPORAL_UNAVAILABLE"
    hint = "Start a server with `perdure dev`, or give its address with --temporal."
