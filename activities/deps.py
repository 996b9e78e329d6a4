"""What every activity needs: the agents that this worker serves, and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from temporalio import activity

from perdure.activities.packing import unpacked
from perdure.checkpoint_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from perdure.activities.wire import ModelTask, ToolTask
    from perdure.agent import Agent
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore

Task = TypeVar("Task", "ModelTask", "ToolTask")


class Deps:
    """Base of the classes that hold activities."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        store: SqlStore,
        threads: Executor,
        *,
        private: bool = False,
    ) -> None:
        self.agents = agents
        self.store = store
        self.threads = threads
        """Where plain (not async) tools run."""
        self.private = private
        """Whether Temporal is not meant to read content: there is a payload codec."""

    def agent(self, name: str) -> Agent:
        """The agent of a name.

        Raises:
            ConfigurationError: this worker serves no agent of that name.
        """
        found = self.agents.get(name)
        if found is None:
            known = ", ".join(sorted(self.agents)) or "none"
            msg = f"There is no agent {name!r}; this worker serves: {known}."
            raise ConfigurationError(msg, field="agent")
        return found


def received(kind: type[Task], value: dict[str, Any]) -> Task:
    """The task of an activity, with what Temporal says of it instead: whose it is."""
    task = unpacked(kind, value)
    info = activity.info()
    task.session_id = task.session_id or str(info.workflow_id)
    task.run_id = task.run_id or str(info.workflow_run_id)
    return task
