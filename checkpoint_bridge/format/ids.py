"""Ids: those that callers may choose for sessions, and those of approvals."""

from __future__ import annotations

import re
import uuid
from typing import Any

from perdure.checkpoint_bridge.errors import SessionIdInvalidError

_CALLER_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def check_session_id(session_id: Any) -> None:
    """Refuse an id that a caller may not choose (format page, *Stored forms*).

    Raises:
        SessionIdInvalidError: it does not match ``^[A-Za-z0-9_-]{1,128}$``.
    """
    if not isinstance(session_id, str) or not _CALLER_ID.fullmatch(session_id):
        shown = session_id if not isinstance(session_id, str) else session_id[:140]
        msg = f"{shown!r} is not a session id: 1 to 128 of the characters A-Z a-z 0-9 _ -."
        raise SessionIdInvalidError(msg)


def approval_id(run_id: str, log_id: int, place: int) -> str:
    """The id of an approval that a run asks for at a place of its log.

    It is the same where that part of a run happens again, after a lost workflow task or Temporal's
    reset: an approval is asked for once, and a decision on it counts.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run_id} {log_id}.{place}"))
