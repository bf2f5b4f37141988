"""Sources of rules: the broker, folders, HTTP and tables."""
