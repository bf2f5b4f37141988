"""What brokers and agents report about themselves: lines of a log, and OpenTelemetry's protocol."""
