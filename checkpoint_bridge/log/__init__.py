"""What a log says: its vocabulary, and the views that are derived from it. All of it is pure."""
