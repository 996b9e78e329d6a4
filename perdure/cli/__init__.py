"""The command line. Its commands import what they need when they run, so that it starts fast."""
