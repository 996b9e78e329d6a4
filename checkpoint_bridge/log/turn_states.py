"""What a turn has come to: one rule for everybody who says so."""

from __future__ import annotations

from typing import Any

__all__ = ["ENDED", "FAILED", "FAILED_KINDS", "FORKED", "PENDING", "turn_state"]

PENDING, ENDED, FAILED = "pending", "ended", "failed"
FAILED_KINDS = ("error", "aborted", "interrupted")
FORKED = "forked"
"""The kind of end of a turn that a fork cut off, also where the log has no ``turn/end`` of it."""


def turn_state(reason: dict[str, Any] | None) -> str:
    """``pending``, ``ended`` or ``failed``, of the reason that a turn ended for.

    Only a turn that something went wrong with has failed: an error, a cancel, a lost run. Any
    other end is one that somebody wanted, or that an answer came to: also ``max-tokens``, where
    the answer was cut, ``blocked``, where a policy refused the turn, and ``forked``.

    Args:
        reason: ``{kind, error?}`` of the ``turn/end``; ``None`` while there is none.
    """
    if reason is None:
        return PENDING
    return FAILED if reason.get("kind") in FAILED_KINDS else ENDED
