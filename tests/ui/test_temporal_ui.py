"""The real Temporal UI: a person decides in it alone, and a codec server decrypts for it.

In headless Chromium, against the UI of the development server. ``make ui`` runs it, and with
``PERDURE_SHOTS=docs/images`` it takes the pictures of the documentation.
"""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.async_api import Page, async_playwright, expect
from temporalio.client import Client

from perdure import Agent, ToolContext, tool
from perdure.checkpoint_bridge.keyring import KEYS_VARIABLE
from perdure.cli.codec import ui_codec
from perdure.client import connect
from perdure.dev_server import DevServer
from perdure.encryption import ENCODING
from perdure.search_attributes import register
from perdure.testing import ScriptedModel, call
from perdure.worker import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE = 30_000
"""Milliseconds that the page may take on a busy machine."""

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@tool(needs_approval=True)
async def charge_card(amount: int, order: str, ctx: ToolContext) -> dict[str, object]:
    """Charge the customer's card."""
    return {"charged": amount, "order": order}


@pytest.fixture
async def server() -> AsyncIterator[DevServer]:
    async with DevServer() as server:
        await register(await Client.connect(server.address))
        yield server


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    assert CHROMIUM, "Chromium is needed; make ui installs it"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        page = await browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page
        await browser.close()


async def shot(page: Page, name: str) -> None:
    folder = os.environ.get("PERDURE_SHOTS")
    if folder:
        await page.screenshot(path=Path(folder) / f"{name}.png")


async def details(page: Page) -> str:
    """What the run's current details show; they are in a frame of their own."""
    await page.get_by_text("User Metadata").click()
    shown = page.frame_locator("iframe").last.locator("body")
    await expect(shown).to_contain_text("step")
    return await shown.inner_text()


async def test_a_person_approves_with_what_the_ui_shows(
    server: DevServer, page: Page, store_url: str
) -> None:
    model = ScriptedModel(
        [[call("charge_card", {"amount": 250, "order": "7"})], "I charged 250 for order 7."]
    )
    agent = Agent("billing", provider=model, tools=[charge_card])
    async with (
        connect(store=store_url, temporal=server.address) as client,
        serving(client.temporal, [agent], client.store),
    ):
        paused = await client.execute("billing", "Settle order 7", session_id="order-7")
        assert paused.finish_reason == "awaiting-approval"

        waiting = quote('AgentApprovalTools = "charge_card" AND ExecutionStatus = "Running"')
        await page.goto(f"{server.ui_url}/namespaces/default/workflows?query={waiting}")
        await expect(page.get_by_role("link", name="order-7").first).to_be_visible()
        await shot(page, "ui-list")
        await page.get_by_role("link", name="order-7").first.click()
        text = await details(page)
        assert "Waits for approval of charge_card" in text
        assert '{"amount": 250, "order": "7"}' in text
        await shot(page, "ui-waits")
        decision = next(
            line.strip() for line in text.splitlines() if line.strip().startswith('{"id"')
        )

        await page.get_by_role("button", name="More Actions").click()
        await page.get_by_role("menuitem", name="Send a Signal").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_test_id("signal-select-button").click()
        await dialog.get_by_role("option", name="resolve_approval").click()
        await dialog.get_by_role("textbox").last.fill(decision)
        await shot(page, "ui-signal")
        # The dialog moves after it was edited, and a first click on its button can miss.
        submit = dialog.get_by_role("button", name="Submit")
        for last in (False, False, True):
            await submit.click()
            try:
                await expect(dialog).to_be_hidden(timeout=PATIENCE if last else 3_000)
                break
            except AssertionError:
                if last:
                    raise

        # The dialog can be gone before Temporal has the signal, so wait for the workflow's end.
        await client.temporal.get_workflow_handle("order-7").result()
        done = await client.handle("order-7", paused.run_id).result()
        assert done.text == "I charged 250 for order 7."
        await page.reload()
        await expect(page.get_by_text("Completed").first).to_be_visible()
        text = await details(page)
        assert "Finished (stop)" in text
        assert "I charged 250 for order 7." in text
        await shot(page, "ui-finished")


async def test_the_codec_server_shows_what_is_encrypted(
    page: Page, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, "k1:" + "MTEx" * 10 + "MTE=")
    codec = ui_codec()
    assert codec is not None
    agent = Agent("billing", provider=ScriptedModel(["I charged Ada's card."]))
    async with (
        DevServer(extra_args=codec.arguments) as server,
        connect(store=store_url, temporal=server.address) as client,
        serving(client.temporal, [agent], client.store),
    ):
        await client.execute("billing", "Settle what Grace owes", session_id="sealed")
        async with codec.serving(server.ui_url):
            await page.goto(f"{server.ui_url}/namespaces/default/workflows/sealed")
            await expect(page.get_by_text("Settle what Grace owes").first).to_be_visible()
            await expect(page.get_by_text("I charged Ada's card.").first).to_be_visible()
            await shot(page, "ui-decrypted")
        # Nobody decrypts now: Temporal itself has ciphertext alone.
        await page.reload()
        lost = page.get_by_role("button", name="Codec Server could not connect")
        await expect(lost).to_be_visible()
        ciphertext = base64.b64encode(ENCODING).decode()
        await expect(page.get_by_text(ciphertext).first).to_be_visible()
        shown = await page.locator("body").inner_text()
        assert "Grace" not in shown
        assert "Ada" not in shown
