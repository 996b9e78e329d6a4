"""Every error that perdure raises on purpose.

::

    PerdureError                        code, message, one-sentence hint
    |-- ConfigurationError              field: the option that is wrong
    |-- ClientClosedError
    |-- SessionIdInvalidError
    |-- SessionNotFoundError
    |-- SessionConflictError            the id belongs to something else, or another writer was here
    |   |-- SessionExistsError
    |   |-- SessionEndedError             it takes no more messages
    |   `-- SessionActiveError            it has not ended, so it is not deleted
    |-- SessionFormatUnsupportedError   the log is of another version of perdure
    |-- SessionLogCorruptError          the log is damaged
    |-- ForkBoundaryError               the place is none that a fork can begin behind
    |-- SessionAwaitingApprovalError    session_id, approval_id
    |-- SessionBusyError                session_id, admission: "rejected"
    |-- NotATurnError                   sequence
    |-- IdempotencyError                key
    |   |-- IdempotencyMismatchError    another request came under the key
    |   `-- IdempotencyAmbiguousError   a request under the key came, and nobody knows what it did
    |-- CheckpointNotFoundError         kept: the steps that a fork can start from
    |-- AgentDriftError
    |-- ResumeToolMissingError
    |-- ApprovalError
    |   |-- ApprovalNotFoundError
    |   `-- ApprovalDecidedError        decision: the one that counts
    |-- StorageError
    |   `-- LogConflictError
    |-- EntryStoreError                 a store of entries of the user's own raised
    |-- EncryptionKeyError              key_id
    |-- ProviderError                   status, retryable, retry_after
    |   |-- RateLimitedError
    |   `-- MissingApiKeyError
    |-- PropagatingToolError            raised by a tool to fail the run
    |-- RunFailedError                  the run ended as Failed for another reason
    |   |-- LimitReachedError           code model_call_limit or turn_time_limit
    |   `-- TurnInterruptedError        code interrupted: its worker was lost, and it does not go on
    `-- TemporalUnavailableError

Codes that start with ``LOUSHO_`` are those of the documented format (the list at the end of
its page); the others are ours. Programs branch on codes, so a code never changes.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AgentDriftError",
    "ApprovalDecidedError",
    "ApprovalError",
    "ApprovalNotFoundError",
    "CheckpointNotFoundError",
    "ClientClosedError",
    "ConfigurationError",
    "EncryptionKeyError",
    "EntryStoreError",
    "ForkBoundaryError",
    "IdempotencyAmbiguousError",
    "IdempotencyError",
    "IdempotencyMismatchError",
    "LimitReachedError",
    "LogConflictError",
    "MissingApiKeyError",
    "NotATurnError",
    "PerdureError",
    "PropagatingToolError",
    "ProviderError",
    "RateLimitedError",
    "ResumeToolMissingError",
    "RunFailedError",
    "SessionActiveError",
    "SessionAwaitingApprovalError",
    "SessionBusyError",
    "SessionConflictError",
    "SessionEndedError",
    "SessionExistsError",
    "SessionFormatUnsupportedError",
    "SessionIdInvalidError",
    "SessionLogCorruptError",
    "SessionNotFoundError",
    "StorageError",
    "TemporalUnavailableError",
    "TurnInterruptedError",
    "error_from_wire",
]


_LONGEST = 10_000


class PerdureError(Exception):
    """Base of all. ``str(error)`` is one line that a user can act on."""

    code: str = "PERDURE_ERROR"
    hint: str = ""
    _facts: ClassVar[tuple[str, ...]] = ()
    """Attributes besides code and hint that cross a process boundary."""

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        if len(message) > _LONGEST:
            # A failure that is too large for Temporal would never get there, and be tried again.
            message = f"{message[:_LONGEST]}… (cut; it had {len(message):,} characters)"
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if hint is not None:
            self.hint = hint

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON from which :func:`error_from_wire` makes an equal error."""
        facts = {name: getattr(self, name) for name in self._facts}
        return {
            "type": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "facts": facts,
        }


class ConfigurationError(PerdureError):
    """An option is wrong; nothing was done."""

    code = "LOUSHO_CONFIG_INVALID"
    hint = "Correct the option that the message names."
    _facts = ("field",)

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.field = field


class ClientClosedError(PerdureError):
    """The client was closed. What it started goes on."""

    code = "PERDURE_CLIENT_CLOSED"
    hint = "Connect again."


class SessionIdInvalidError(PerdureError):
    """A session id given by a caller does not match ``^[A-Za-z0-9_-]{1,128}$``."""

    code = "LOUSHO_SESSION_ID_INVALID"
    hint = "Use 1 to 128 of the characters A-Z a-z 0-9 _ and -."


class SessionNotFoundError(PerdureError):
    """The store holds no session of this id."""

    code = "PERDURE_SESSION_NOT_FOUND"
    hint = "List the sessions of the store with `perdure sessions`."


class SessionConflictError(PerdureError):
    """The id is in use by something that this call must not touch."""

    code = "PERDURE_SESSION_CONFLICT"
    hint = "Use another session id, or another Temporal namespace."


class SessionExistsError(SessionConflictError):
    """A session that was to be new has an id that the store knows already."""

    code = "PERDURE_SESSION_ALREADY_EXISTS"
    hint = "Give another id, or none."


class SessionEndedError(SessionConflictError):
    """The session was ended: its history stays readable, and it takes no more messages."""

    code = "PERDURE_SESSION_ENDED"
    hint = "Fork it to go on from where it was, or begin another session."


class SessionActiveError(SessionConflictError):
    """Only a session that was ended, or whose last run failed, is deleted without force."""

    code = "PERDURE_SESSION_ACTIVE"
    hint = "End it first, or delete it with force."


class SessionFormatUnsupportedError(PerdureError):
    """The log was written in a format that this version does not read; nothing was changed."""

    code = "PERDURE_SESSION_FORMAT_UNSUPPORTED"
    hint = "Nothing was changed; `perdure export --raw` gives what is stored."
    _facts = ("type", "seq")

    def __init__(
        self,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - the envelope's word
        seq: int | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.type = type
        """Of the event that is not known, where it is one event."""
        self.seq = seq


class SessionLogCorruptError(PerdureError):
    """What is stored of a log is not what was written; nothing was changed."""

    code = "PERDURE_SESSION_LOG_CORRUPT"
    hint = "Restore a copy of the store; `perdure export --raw` gives what is stored."


class ForkBoundaryError(PerdureError):
    """A fork cannot begin behind this event.

    ``code`` says why: ``PERDURE_INVALID_BOUNDARY`` (there is no such event) or
    ``PERDURE_OPEN_TURN`` (it is in the middle of a turn).
    """

    code = "PERDURE_INVALID_BOUNDARY"
    hint = "Fork behind an event that `perdure events` lists, between two turns."


class SessionAwaitingApprovalError(PerdureError):
    """New input must not pass by a decision that is pending (seed 000)."""

    code = "LOUSHO_SESSION_AWAITING_APPROVAL"
    hint = "Resolve the approval first, then send the message."
    _facts = ("session_id", "approval_id")

    def __init__(
        self,
        message: str,
        *,
        session_id: str = "",
        approval_id: str = "",
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.session_id = session_id
        self.approval_id = approval_id


class SessionBusyError(PerdureError):
    """A turn goes on, and the new input was not to wait for it; nothing was taken."""

    code = "PERDURE_SESSION_BUSY"
    hint = "Send it again when the turn has ended, or with turn_policy 'queue' or 'wait'."
    _facts = ("session_id", "admission")

    def __init__(
        self,
        message: str,
        *,
        session_id: str = "",
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.session_id = session_id
        self.admission = "rejected"
        """An idempotency key that came with the input is as good as new."""


class NotATurnError(PerdureError):
    """The log has no start of a turn at the sequence that was given."""

    code = "PERDURE_NOT_A_TURN"
    hint = "Give the sequence of a turn/start; see them with `perdure events`."
    _facts = ("sequence",)

    def __init__(
        self,
        message: str,
        *,
        sequence: int = 0,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.sequence = sequence


class IdempotencyError(PerdureError):
    """A request under an idempotency key that cannot be answered; nothing was done."""

    code = "PERDURE_IDEMPOTENCY"
    _facts = ("key",)

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.key = key


class IdempotencyMismatchError(IdempotencyError):
    """The key was used for another request."""

    code = "PERDURE_IDEMPOTENCY_MISMATCH"
    hint = "Use a new key for a new request."


class IdempotencyAmbiguousError(IdempotencyError):
    """A request under this key was begun and its response is unknown: it may have happened."""

    code = "PERDURE_IDEMPOTENCY_AMBIGUOUS"
    hint = "Look at the session's history before you send it with a new key."


class CheckpointNotFoundError(PerdureError):
    """The history keeps no entry of the step that was asked for."""

    code = "LOUSHO_CHECKPOINT_NOT_FOUND"
    hint = "Fork from one of the steps that are kept, or by a boundary of the log: any turn."
    _facts = ("kept",)

    def __init__(
        self,
        message: str,
        *,
        kept: list[int] | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.kept = kept or []


class AgentDriftError(PerdureError):
    """The agent that resumes differs from the one that started, and ``on_agent_drift="error"``."""

    code = "LOUSHO_AGENT_DRIFT"
    hint = 'Resume with the agent that started the run, or set on_agent_drift to "warn".'


class ResumeToolMissingError(PerdureError):
    """A call without a result names a tool that the agent no longer has."""

    code = "LOUSHO_RESUME_TOOL_MISSING"
    hint = "Give the agent the tool again, or reject the approval."
    _facts = ("tools",)

    def __init__(
        self,
        message: str,
        *,
        tools: list[str] | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.tools = tools or []


class ApprovalError(PerdureError):
    """A decision that cannot be taken; nothing was executed."""

    code = "LOUSHO_APPROVAL_NOT_FOUND"
    hint = "List what is pending with `perdure approvals`."


class ApprovalNotFoundError(ApprovalError):
    """No approval of this id waits (unknown, of another run, or its run has ended)."""


class ApprovalDecidedError(ApprovalError):
    """Somebody else's decision came first and is the one that counts."""

    code = "PERDURE_APPROVAL_DECIDED"
    hint = "The first decision counts; see it with `perdure show`."
    _facts = ("decision",)

    def __init__(
        self,
        message: str,
        *,
        decision: dict[str, Any] | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.decision = decision or {}

    @classmethod
    def of(cls, approval_id: str, decision: dict[str, Any]) -> ApprovalDecidedError:
        """The answer to whoever comes second, naming the decision that counts."""
        word = "approved" if decision.get("approved") else "rejected"
        by = f" by {decision['by']}" if decision.get("by") else ""
        return cls(f"Approval {approval_id} was already {word}{by}.", decision=decision)


class StorageError(PerdureError):
    """The store cannot be opened, read or written."""

    code = "LOUSHO_STORAGE_FAILED"
    hint = "Check the store's address, its permissions and its disk."


class LogConflictError(StorageError):
    """Another writer has put something else at this place of the log."""

    code = "PERDURE_LOG_CONFLICT"
    hint = "One run writes to a session at a time; open the session again."


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


class PropagatingToolError(PerdureError):
    """Raise it in a tool to fail the run instead of giving the model an error result."""

    code = "LOUSHO_TOOL_EXECUTION_FAILED"
    hint = "The tool chose to fail the run; the session can be resumed."


class RunFailedError(PerdureError):
    """The run ended as Failed; its checkpoint is unfinished and can be resumed."""

    code = "PERDURE_RUN_FAILED"
    hint = "Read the run's failure in the Temporal UI, then resume the session."


class LimitReachedError(RunFailedError):
    """The turn reached a limit of its agent; ``code`` says which."""

    code = "turn_limit"
    hint = "Resume the session to go on with new limits."


class TurnInterruptedError(RunFailedError):
    """The turn lost its worker, and its agent does not continue such turns (``on_crash``)."""

    code = "interrupted"
    hint = "See session.ambiguous() for what may have happened, then send a new message."


class TemporalUnavailableError(PerdureError):
    """Temporal does not answer at the address."""

    code = "PERDURE_TEMPORAL_UNAVAILABLE"
    hint = "Start a server with `perdure dev`, or give its address with --temporal."


def _all_types(root: type[PerdureError]) -> dict[str, type[PerdureError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_all_types(child))
    return found


def error_from_wire(wire: dict[str, Any]) -> PerdureError:
    """Make the error again that :meth:`PerdureError.to_wire` described.

    An unknown type (written by a newer version) becomes a plain :class:`PerdureError`
    with the same code and message.
    """
    kind = _all_types(PerdureError).get(str(wire.get("type")), PerdureError)
    error = kind(
        str(wire.get("message", "")),
        code=wire.get("code"),
        hint=wire.get("hint"),
    )
    for name, value in (wire.get("facts") or {}).items():
        if name in kind._facts:  # noqa: SLF001 - of its own subclasses
            setattr(error, name, value)
    return error
