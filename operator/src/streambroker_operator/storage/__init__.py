"""Storage of the embedded broker: the interface and SQLite."""
