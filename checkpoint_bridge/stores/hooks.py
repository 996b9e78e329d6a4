"""What an application is told of its sessions' lives."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.checkpoint_bridge.log.events import TURN_END
from perdure.checkpoint_bridge.option_checks import async_function

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.checkpoint_bridge.log.events import NewEvent

Hook = Callable[[str], Awaitable[object]]
"""Gets the session's id."""

_VETO = "The hook on_session_created decides which sessions there may be."
_log = logging.getLogger("perdure.sessions")


@dataclass(frozen=True, slots=True)
class SessionHooks:
    """Hooks of one store object; all are awaited, in the process that does it.

    A process that dies in the middle may call one again.
    """

    on_session_created: Hook | None = None
    """Before a session is made, by a run or an application (a fork is not asked about). Raising
    stops that: there is no session then."""
    on_flush: Hook | None = None
    """After the end of a turn is committed, before its run goes on to end."""
    on_session_disposed: Hook | None = None
    """After a session was ended or deleted."""

    def __post_init__(self) -> None:
        """Check the hooks.

        Raises:
            ConfigurationError: one of them is no async function.
        """
        for each in fields(self):
            hook = getattr(self, each.name)
            if hook is not None:
                async_function(each.name, hook, "a session's id")

    async def created(self, session_id: str) -> None:
        """Tell of a session that is about to be made."""
        if self.on_session_created is None:
            return
        try:
            await self.on_session_created(session_id)
        except Exception as error:
            msg = f"Session {session_id!r} was not made: {type(error).__name__}: {error}"
            raise ConfigurationError(msg, field="on_session_created", hint=_VETO) from error

    async def flushed(self, session_id: str, events: Iterable[NewEvent]) -> None:
        """Tell of a turn's end, if it is among the events that were just committed."""
        if self.on_flush is not None and any(event.type == TURN_END for event in events):
            await _tell(self.on_flush, session_id)

    async def disposed(self, session_id: str) -> None:
        """Tell of a session that is gone, or takes nothing more."""
        if self.on_session_disposed is not None:
            await _tell(self.on_session_disposed, session_id)


async def _tell(hook: Hook, session_id: str) -> None:
    """What has happened cannot be stopped any more, so an error is only logged."""
    try:
        await hook(session_id)
    except Exception:  # noqa: BLE001 - it is the user's own code
        _log.exception("A hook of session %s failed", session_id)
