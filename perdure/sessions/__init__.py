"""Sessions as an application uses them: ``client.sessions`` and the session objects it gives."""
