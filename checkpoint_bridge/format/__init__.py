"""The documented checkpoint format: its records, its rules, its JSON. All of it is pure."""
