"""Alembic's folder: one module a version of the schema, and the environment that runs them."""
