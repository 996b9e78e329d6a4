"""Formats of logs: which ones this code reads, and how an older one becomes the current one.

It has nothing to do with the schema of the tables (``migrations/``) or with the workflow code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import SessionFormatUnsupportedError, SessionLogCorruptError
from perdure.checkpoint_bridge.log.events import is_of_application
from perdure.checkpoint_bridge.log.fold import SessionState
from perdure.checkpoint_bridge.log.headers import SESSION_FORMAT_VERSION

if TYPE_CHECKING:
    from perdure.checkpoint_bridge.log.events import Event

Step = Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]
"""Makes type and data of an event of one format those of the next.

Event for event: a log keeps its numbers, so what refers to a ``seq`` stays right.
"""


@dataclass(frozen=True)
class LogFormats:
    """The current format, and the steps to it from all older ones."""

    version: int
    steps: Mapping[int, Step] = field(default_factory=dict)
    """``steps[n]`` leads from format ``n`` to ``n + 1``."""

    def __post_init__(self) -> None:
        known = sorted(self.steps)
        if known and known != list(range(known[0], self.version)):
            msg = f"The steps to log format {self.version} have a gap: {known}."
            raise ValueError(msg)

    def check(self, session_id: str, version: int) -> None:
        """Refuse what cannot be read, before any event of it is.

        Raises:
            SessionFormatUnsupportedError: the version is newer, or nothing leads here from it.
        """
        if version == self.version or version in self.steps:
            return
        what = f"The log of session {session_id!r} has format {version}"
        if version > self.version:
            msg = f"{what}, written by a newer version of perdure; this one knows {self.version}."
            hint = "Upgrade perdure; nothing was changed."
            raise SessionFormatUnsupportedError(msg, hint=hint)
        msg = f"{what}, which is older than any that this version reads."
        hint = "Open it with an older version of perdure; nothing was changed."
        raise SessionFormatUnsupportedError(msg, hint=hint)

    def require(self, session_id: str, version: int) -> None:
        """As :meth:`check`, where an older format is not brought to the current one either."""
        self.check(session_id, version)
        if version != self.version:
            msg = f"The log of session {session_id!r} has format {version}, not {self.version}."
            raise SessionFormatUnsupportedError(msg, hint="Open the session first.")

    def upgrade(self, session_id: str, version: int, log: list[Event]) -> list[Event]:
        """A log in the current format; the one that is given stays as it is.

        Raises:
            SessionFormatUnsupportedError: an event is of a type that is not known.
            SessionLogCorruptError: a step cannot read it, or what it gives is no log.
        """
        try:
            for number in range(version, self.version):
                step = self.steps[number]
                log = [_apply(step, event) for event in log]
            # What is not known may be skipped when it is read, not when it is written anew; what
            # is of an application says nothing of the conversation in any format.
            SessionState().fold(replace(each, ignorable=_is_foreign(each)) for each in log)
        except SessionFormatUnsupportedError:
            raise
        except Exception as error:
            msg = (
                f"The log of session {session_id!r} cannot be brought from format {version} to "
                f"{self.version}: {type(error).__name__}: {error}"
            )
            raise SessionLogCorruptError(msg) from error
        return log


def _is_foreign(event: Event) -> bool:
    """Whether it is an application's own, as tools emit them: no step may change it."""
    return event.ignorable and is_of_application(event.type)


def _apply(step: Step, event: Event) -> Event:
    if _is_foreign(event):
        return event
    type_, data = step(event.type, dict(event.data))
    return replace(event, type=type_, data=data)


CURRENT = LogFormats(SESSION_FORMAT_VERSION)
