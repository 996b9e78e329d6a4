"""What touches the world: model providers, tools, and the writer of the log."""
