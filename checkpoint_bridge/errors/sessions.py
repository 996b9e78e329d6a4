"""Errors about a session, its log and its turns."""

from __future__ import annotations

from perdure.checkpoint_bridge.errors.base import PerdureError


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
    """New input must not pass by a decision that is pending."""

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
