"""What all errors have in common, and how they cross a process boundary."""

from __future__ import annotations

from typing import Any, ClassVar

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


def _all_types(root: type[PerdureError]) -> dict[str, type[PerdureError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_all_types(child))
    return found


def error_from_wire(wire: dict[str, Any]) -> PerdureError:
    """Make the error again that :meth:`PerdureError.to_wire` described.

    An unknown type (written by a newer version) becomes a plain :class:`PerdureError`
    with the same code and message. All types are known: this module's package imports them.
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
