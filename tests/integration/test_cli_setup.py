"""``perdure setup``: what a namespace and a store need once."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from perdure.cli.main import run
from perdure.search_attributes import look_up
from perdure.workflows.attributes import SEARCH_ATTRIBUTES

if TYPE_CHECKING:
    import pytest


def test_setup_registers_and_says_so(
    store_url: str, temporal_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"setup-{uuid.uuid4().hex[:8]}"

    async def make() -> None:
        client = await Client.connect(temporal_address)
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(
                namespace=name, workflow_execution_retention_period=Duration(seconds=86_400)
            )
        )

    async def usable() -> list[str]:
        return (await look_up(await Client.connect(temporal_address, namespace=name))).usable

    asyncio.run(make())
    for _ in range(2):
        arguments = ["--store", store_url, "--temporal", temporal_address, "--namespace", name]
        assert run(["setup", *arguments]) == 0
        said = capsys.readouterr()
        assert "AgentApprovalTools" in said.out + said.err
    assert asyncio.run(usable()) == [key.name for key in SEARCH_ATTRIBUTES]
