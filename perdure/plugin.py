"""A Temporal plugin: a client and a worker that exist already gain agents with one argument."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from perdure.activities.opening import Opening
from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.connection import store_at
from perdure.encryption import is_encrypting, is_private, resolve, with_encryption
from perdure.search_attributes import usable
from perdure.worker import HEARTBEAT_EVERY, activities, agents_of, hosting, tool_threads
from perdure.workflows.agent_workflow import AgentWorkflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from temporalio.worker import Worker, WorkerConfig, WorkflowRunner

    from perdure.agent import Agent
    from perdure.checkpoint_bridge.stores.addresses import Targets
    from perdure.checkpoint_bridge.stores.sql_store import SqlStore
    from perdure.encryption import Encryption

__all__ = ["PerdurePlugin"]


class PerdurePlugin(SimplePlugin):
    """Adds agents to a worker of one's own, beside its workflows and activities.

    Given to ``Client.connect(plugins=…)`` it reaches the workers of that client too; a
    :class:`temporalio.worker.Replayer` takes it as well. The data converter, codec and
    interceptors of the client stay as they are; encryption is put around them.

    Args:
        agents: who is served, by name.
        store: the store's address, or a store. It is opened and closed with the worker.
        mirrors: stores in the documented format, or their addresses, that get every save.
        encryption: keys that encrypt what Temporal gets, and the content of a store that is given
            by its address; default: those of
            ``PERDURE_ENCRYPTION_KEYS``, if it is set. ``False``: none.

    Raises:
        ConfigurationError: there is no agent, two have one name, an address or a key is wrong.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        *,
        store: str | SqlStore = "sqlite:///perdure.db",
        mirrors: Targets = None,
        encryption: Encryption = None,
    ) -> None:
        keys = resolve(encryption)
        super().__init__(
            "perdure.PerdurePlugin",
            workflows=[AgentWorkflow],
            workflow_runner=_letting_perdure_in,
            data_converter=None
            if keys is None
            else lambda given: with_encryption(given or DataConverter.default, keys),
        )
        self._agents = agents_of(agents)
        self._keys = keys
        store_at(store, keys)  # its error, before anything is made
        self._store = store
        self._mirrors = mirrors

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add the workflow and the activities of the agents.

        Raises:
            ConfigurationError: the client has lost the encryption that this plugin gave it, or
                never had it.
        """
        config = super().configure_worker(config)
        converter = config["client"].data_converter
        if self._keys is not None and not is_encrypting(converter.payload_codec):
            msg = "The worker's client does not encrypt: its data converter is not this plugin's."
            hint = "Give PerdurePlugin to Client.connect(plugins=…), behind those that set a codec."
            raise ConfigurationError(msg, field="encryption", hint=hint)
        store = store_at(self._store, self._keys)
        ours = activities(self._agents, store, tool_threads(), private=is_private(converter))
        config["activities"] = [*(config.get("activities") or ()), *ours]
        throttle = config.get("max_heartbeat_throttle_interval", HEARTBEAT_EVERY)
        config["max_heartbeat_throttle_interval"] = min(throttle, HEARTBEAT_EVERY)
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 - the base's name
        """Run the worker with the store open."""
        async with self._around(worker):
            await super().run_worker(worker, next)

    @contextlib.asynccontextmanager
    async def _around(self, worker: Worker) -> AsyncIterator[None]:
        served = worker.config(active_config=True)["activities"]
        owners = (getattr(activity, "__self__", None) for activity in served)
        ours = next(owner for owner in owners if isinstance(owner, Opening))
        ours.attributes = await usable(worker.client)
        await ours.store.open()
        try:
            async with hosting(
                ours.store, ours.threads, mirrors=self._mirrors, private=ours.private
            ):
                yield
        finally:
            if isinstance(self._store, str):
                await ours.store.close()


def _letting_perdure_in(runner: WorkflowRunner | None) -> WorkflowRunner:
    """The runner, whose sandbox does not load this package again for each workflow of the user's.

    A file of theirs may hold workflows beside agents or this plugin. What those import (HTTP and
    database clients) cannot be loaded in the sandbox, and no workflow uses it.
    """
    runner = runner or SandboxedWorkflowRunner()  # as without a plugin
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    restrictions = runner.restrictions.with_passthrough_modules("perdure")
    return dataclasses.replace(runner, restrictions=restrictions)
