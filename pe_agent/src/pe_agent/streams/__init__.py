"""The fluent API: streams, operators, patterns and side inputs."""
