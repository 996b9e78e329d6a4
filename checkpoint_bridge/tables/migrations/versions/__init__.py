"""The versions, oldest first by name."""
