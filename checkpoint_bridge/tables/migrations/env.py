"""Runs the migrations on the connection that the caller opened and locked."""

from __future__ import annotations

from alembic import context

from perdure.checkpoint_bridge.tables.schema import VERSION_TABLE, metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=False,  # the caller's transaction holds all of it
)
context.run_migrations()
