"""What a fleet needs of a worker: its version, its readiness, and how long it may drain."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.checkpoint_bridge.errors import ConfigurationError
from perdure.cli.options import seconds_option

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLEET = "Fleet"

DeploymentOption = Annotated[
    str | None,
    typer.Option(
        "--deployment",
        envvar="PERDURE_DEPLOYMENT",
        metavar="NAME",
        help="Temporal's worker deployment that this worker is part of; with --build-id.",
        show_default=False,
        rich_help_panel=_FLEET,
    ),
]
BuildIdOption = Annotated[
    str | None,
    typer.Option(
        "--build-id",
        envvar="PERDURE_BUILD_ID",
        metavar="ID",
        help="The version in that deployment, such as a commit.",
        show_default=False,
        rich_help_panel=_FLEET,
    ),
]
PinnedOption = Annotated[
    bool,
    typer.Option(
        "--pinned",
        envvar="PERDURE_PINNED",
        help="Runs stay on the version that they began on; default: they go on with the new one.",
        rich_help_panel=_FLEET,
    ),
]
GraceOption = Annotated[
    float | None,
    typer.Option(
        "--grace",
        envvar="PERDURE_GRACE",
        metavar="SECONDS",
        help="How long calls in flight may finish when it is told to stop; default: 10.",
        show_default=False,
        rich_help_panel=_FLEET,
    ),
]
ReadyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ready-file",
        envvar="PERDURE_READY_FILE",
        metavar="FILE",
        help="A file that is there while the worker takes work, for probes.",
        show_default=False,
        rich_help_panel=_FLEET,
    ),
]


@dataclass(frozen=True)
class Rollout:
    """A worker's place in its fleet."""

    deployment: str | None = None
    build_id: str | None = None
    pinned: bool = False
    grace: float | None = None
    """Seconds."""
    ready_file: Path | None = None

    def check(self) -> None:
        """Tell what does not fit before anything is started.

        Raises:
            ConfigurationError: a version without its deployment or the other way round, a grace
                that is no time, or a file that cannot be there.
        """
        if (self.deployment is None) != (self.build_id is None):
            msg = "--deployment and --build-id go together: they name one version."
            raise ConfigurationError(msg, field="--deployment")
        if self.pinned and self.deployment is None:
            msg = "--pinned needs --deployment and --build-id."
            raise ConfigurationError(msg, field="--pinned")
        seconds_option("--grace", self.grace)
        if self.ready_file is not None and not os.access(self.ready_file.parent, os.W_OK):
            msg = f"{self.ready_file} cannot be written: its folder is missing or not yours."
            raise ConfigurationError(msg, field="--ready-file")

    def worker_options(self) -> dict[str, Any]:
        """Options of temporalio's worker."""
        from temporalio.common import VersioningBehavior
        from temporalio.worker import WorkerDeploymentConfig, WorkerDeploymentVersion

        options: dict[str, Any] = {}
        if self.grace is not None:
            options["graceful_shutdown_timeout"] = timedelta(seconds=self.grace)
        if self.deployment is not None and self.build_id is not None:
            behavior = VersioningBehavior.PINNED if self.pinned else VersioningBehavior.AUTO_UPGRADE
            options["deployment_config"] = WorkerDeploymentConfig(
                version=WorkerDeploymentVersion(self.deployment, self.build_id),
                use_worker_versioning=True,
                default_versioning_behavior=behavior,
            )
        return options

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """While entered, the file says that the worker takes work."""
        if self.ready_file is None:
            yield
            return
        self.ready_file.write_text(f"{os.getpid()}\n", "utf-8")
        try:
            yield
        finally:
            self.ready_file.unlink(missing_ok=True)
