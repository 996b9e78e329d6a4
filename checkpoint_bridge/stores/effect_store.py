"""The part of the store that keeps the ledger of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.stores.part import StorePart
from perdure.checkpoint_bridge.stores.stored import now_ms
from perdure.checkpoint_bridge.tables import ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.checkpoint_bridge.tables.database import Database
    from perdure.checkpoint_bridge.tables.event_log import Batch
    from perdure.checkpoint_bridge.tables.ledger import Effect, EffectId

_CACHED_UIDS = 10_000


class EffectStore(StorePart):
    """The part of a store that keeps the ledger."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._uids: dict[int, str] = {}

    async def begin_effect(
        self, effect_id: EffectId, *, session_id: str, run_id: str, name: str
    ) -> Effect:
        """Mark an effect as started, or give its outcome (see :func:`.ledger.begin_effect`)."""
        return await self.database.write_quick(
            ledger.begin_effect,
            effect_id,
            session_id=session_id,
            run_id=run_id,
            name=name,
            time_ms=now_ms(),
        )

    async def end_effect(
        self,
        effect_id: EffectId,
        *,
        session_id: str,
        name: str,
        outcome: dict[str, Any],
        message: dict[str, Any],
        record: Callable[[Effect, int], Batch | None] | None = None,
    ) -> Effect:
        """Store an effect's outcome and what it means (see :func:`.ledger.end_effect`)."""
        made: list[Batch | None] = []

        def remember(effect: Effect, head: int) -> Batch | None:
            assert record is not None
            made.append(record(effect, head))
            return made[-1]

        effect = await self.database.write_quick(
            ledger.end_effect,
            effect_id,
            session_id=session_id,
            name=name,
            outcome=outcome,
            message=message,
            time_ms=now_ms(),
            record=None if record is None else remember,
            keep_saves=self.keep_saves,
        )
        if effect.head is not None and made[-1] is not None:
            await self.appended(made[-1], effect.head)
        return effect

    async def note_attempt(
        self, effect_id: EffectId, attempt: dict[str, Any], *, name: str
    ) -> list[dict[str, Any]]:
        """Add a failed attempt of an effect; returns all of them."""
        return await self.database.write_quick(
            ledger.note_attempt, effect_id, attempt, name=name, time_ms=now_ms()
        )

    async def effect(self, effect_id: EffectId) -> Effect | None:
        """The ledger's row, or ``None`` when the effect was never begun."""
        return await self.database.read_quick(ledger.find_effect, effect_id)

    async def log_uid(self, log_id: int) -> str:
        """The log's random id: part of the idempotency keys of its calls."""
        if log_id not in self._uids:
            if len(self._uids) >= _CACHED_UIDS:
                self._uids.clear()
            self._uids[log_id] = await self.database.read_quick(ledger.log_uid, log_id)
        return self._uids[log_id]
