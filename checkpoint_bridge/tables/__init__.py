"""The tables of the store: their rows, inside a transaction that the caller holds."""
