"""Authentication, rate limits, fairness and idempotency of requests."""
