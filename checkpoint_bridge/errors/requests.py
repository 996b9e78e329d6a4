"""Errors about what was sent to a run: requests under a key, and decisions."""

from __future__ import annotations

from typing import Any

from perdure.checkpoint_bridge.errors.base import PerdureError


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


class ApprovalError(PerdureError):
    """A decision that cannot be taken; nothing was executed."""

    code = "LOUSHO_APPROVAL_NOT_FOUND"
    hint = "List what is pending with `perdure approvals`."


class ApprovalNotFoundError(ApprovalError):
    """No approval of this id waits (unknown, of another run, or its run has ended)."""

    @classmethod
    def of_ended(cls, approval_id: str, how: str) -> ApprovalNotFoundError:
        """For an approval that was closed because its run ended before anybody decided."""
        msg = f"The run that asked for approval {approval_id!r} has ended ({how})."
        return cls(msg, hint="Send the session its next message.")


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
