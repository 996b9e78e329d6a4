"""Which session ids callers may choose."""

from __future__ import annotations

import re
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
