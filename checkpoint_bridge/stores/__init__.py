"""Stores: the documented contract, ours on SQL, and the TypeScript SDK's stored forms."""
