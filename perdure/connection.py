"""Reaches Temporal: address, namespace, TLS and API key as every Temporal program reads them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Literal

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.envconfig import ClientConfig
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from perdure.checkpoint_bridge.errors import ConfigurationError, TemporalUnavailableError
from perdure.checkpoint_bridge.option_checks import of_type, refusal, text
from perdure.checkpoint_bridge.stores.sql_store import SqlStore
from perdure.converter import CONVERTER
from perdure.encryption import encrypting, resolve

if TYPE_CHECKING:
    from temporalio.client import WorkflowHandle

    from perdure.checkpoint_bridge.errors import PerdureError
    from perdure.checkpoint_bridge.keyring import Keyring
    from perdure.encryption import Encryption

DEFAULT_ADDRESS = "localhost:7233"
DEFAULT_TASK_QUEUE = "perdure"

_CONNECT_SECONDS = 10.0


async def connect_temporal(
    address: str | None = None, namespace: str | None = None, *, encryption: Encryption = None
) -> Client:
    """A Temporal client by temporalio's own environment configuration.

    ``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, ``TEMPORAL_API_KEY``, TLS settings and profiles
    of ``temporal.toml`` count as they do for every Temporal program; the arguments win.

    Args:
        address: ``HOST:PORT``.
        namespace: the Temporal namespace.
        encryption: keys for everything that enters Temporal; default: those of
            ``PERDURE_ENCRYPTION_KEYS``, if it is set. ``False``: none.

    Raises:
        ConfigurationError: the environment's configuration cannot be read.
        TemporalUnavailableError: nothing answers at the address.
    """
    keys = resolve(encryption)
    try:
        config: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
    except (ValueError, RuntimeError, OSError) as error:
        msg = f"Temporal's environment configuration cannot be read: {error}"
        raise ConfigurationError(msg, field="temporal") from error
    if address is not None:
        config["target_host"] = address
    config.setdefault("target_host", DEFAULT_ADDRESS)
    if namespace is not None:
        of_type("namespace", namespace, str, "a text")
        config["namespace"] = namespace
    target = config["target_host"]
    if "://" in target:
        msg = f"{target!r} is not an address of Temporal: give HOST:PORT, without a scheme."
        raise ConfigurationError(msg, field="temporal")
    if config.get("namespace") == "":
        msg = "The Temporal namespace is empty; give its name, or nothing for the default one."
        raise ConfigurationError(msg, field="namespace")
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            client = await Client.connect(**config, data_converter=CONVERTER)
    except (RuntimeError, TimeoutError, RPCError) as error:
        msg = f"Temporal does not answer at {target}."
        raise TemporalUnavailableError(msg) from error
    except ValueError as error:
        msg = f"{target!r} is not an address of Temporal: {error}"
        raise ConfigurationError(msg, field="temporal") from error
    return encrypting(client, keys)


def check_names(task_queue: object, workflow_id_prefix: object = "") -> None:
    """Check names that Temporal would refuse later, or be silent about.

    Raises:
        ConfigurationError: one is no text, or the task queue is empty.
    """
    text("task_queue", task_queue)
    of_type("workflow_id_prefix", workflow_id_prefix, str, "a text")


def store_at(
    store: str | SqlStore, keys: Keyring | None, *, create: bool | Literal["late"] = True
) -> SqlStore:
    """The store that is meant; with ``keys`` when it is given by its address.

    Raises:
        ConfigurationError: it is neither an address nor a store.
    """
    if isinstance(store, str):
        return SqlStore(store, create=create, encryption=keys or False)
    what = "an address such as sqlite:///perdure.db, or a SqlStore"
    found: SqlStore = of_type("store", store, SqlStore, what)
    return found


def check_temporal(temporal: object) -> None:
    """Check what is to be Temporal, before anything is opened.

    Raises:
        ConfigurationError: it is neither an address nor a client.
    """
    if temporal is not None and not isinstance(temporal, (str, Client)):
        raise refusal("temporal", "HOST:PORT or a connected Temporal client", temporal)


async def client_of(
    temporal: str | Client | None, namespace: str | None, keys: Keyring | None
) -> Client:
    """The client that was given, with encryption around it, or one that is connected here."""
    if isinstance(temporal, Client):
        return encrypting(temporal, keys)
    return await connect_temporal(temporal, namespace, encryption=keys or False)


async def check_namespace(client: Client) -> None:
    """Ask for the client's namespace, which a worker would else miss with a long traceback.

    Raises:
        ConfigurationError: there is no such namespace.
        TemporalUnavailableError: Temporal does not answer.
    """
    try:
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace)
        )
    except RPCError as error:
        raise rpc_failure(error, client) from error


def quiet_core() -> None:
    """For programs of ours: let Temporal's native core report errors alone.

    It writes to standard error itself, in colours, what it also tells by exceptions; a program
    that is not ours decides about its core by itself.
    """
    logs = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    # Without effect when there is one already: a program that embeds us made it.
    with contextlib.suppress(RuntimeError):
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)))


def rpc_failure(error: RPCError, client: Client) -> PerdureError:
    """An error of ours for a failed call to Temporal."""
    target = client.service_client.config.target_host
    if error.status == RPCStatusCode.NOT_FOUND and "amespace" in error.message:
        msg = f"Temporal at {target} has no namespace {client.namespace!r}."
        return ConfigurationError(msg, field="namespace")
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return ConfigurationError(f"Temporal at {target} refused the request: {error.message}.")
    msg = f"Temporal at {target} did not answer: {error.message or error.status.name}"
    return TemporalUnavailableError(msg)


async def update(workflow: WorkflowHandle[Any, Any], name: str, argument: Any) -> Any:
    """Send an update and wait for its answer.

    A run that closes aborts the updates that wait, also some that it has taken already. So an
    update goes to one execution (``workflow`` names it), and an abort is no answer before that
    execution's history has been asked; else whoever tries again would have its way twice.

    Raises:
        RPCError: it was not taken.
        WorkflowUpdateRPCTimeoutOrCancelledError: Temporal gave no answer in its own time.
        WorkflowUpdateFailedError: it was refused.
    """
    update_id = str(uuid.uuid4())
    try:
        try:
            return await workflow.execute_update(name, argument, id=update_id)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            try:
                return await workflow.get_update_handle(update_id).result()
            except RPCError:
                raise error from None
    except WorkflowUpdateRPCTimeoutOrCancelledError:
        # temporalio makes an error of whoever cancels us, too; that is to stay a cancel.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise
