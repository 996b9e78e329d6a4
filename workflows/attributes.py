"""Search attributes: by what Temporal's lists find runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from perdure.checkpoint_bridge.log.lineage import ancestors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.activities.wire import RunFacts

_NAME = SearchAttributeKey.for_keyword("AgentName")
_STATUS = SearchAttributeKey.for_keyword("AgentStatus")
_STEP = SearchAttributeKey.for_int("AgentStep")
_TOOLS = SearchAttributeKey.for_keyword_list("AgentApprovalTools")
_PARENT = SearchAttributeKey.for_keyword("AgentParentSession")

SEARCH_ATTRIBUTES = (_NAME, _STATUS, _STEP, _TOOLS, _PARENT)
"""What lists of workflows can ask about runs, once the namespace has them."""


class Attributes:
    """Tells Temporal what lists may be asked about a run.

    Each telling is an event, so it happens only when the status or what is waited for changes;
    the step is as it was then. Names that the namespace lacked when the run opened are left out:
    one of them would fail the workflow task for ever.
    """

    def __init__(self, agent: str, session_id: str, facts: RunFacts) -> None:
        self._agent = agent
        self._above = ancestors(session_id)
        self._facts = facts
        self._told: tuple[str, tuple[str, ...]] | None = None

    def tell(self, status: str, tools: Sequence[str]) -> None:
        """Say what the run is doing, and which tools' calls it waits for people about."""
        now = (status, tuple(tools))
        if not self._facts.attributes or now == self._told:
            return
        updates: list[SearchAttributeUpdate[Any]] = [
            _STATUS.value_set(status),
            _STEP.value_set(self._facts.step),
            _TOOLS.value_set(list(dict.fromkeys(tools))),
        ]
        if self._told is None:
            updates.append(_NAME.value_set(self._agent))
            if self._above:
                updates.append(_PARENT.value_set(self._above[0]))
        self._told = now
        known = [each for each in updates if each.key.name in self._facts.attributes]
        if known:
            workflow.upsert_search_attributes(known)
