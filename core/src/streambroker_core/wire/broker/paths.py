"""Prefixes of the broker's REST paths."""

API = "/api/subscriptions"
"""Prefix of every path except probes, jobs and the API description."""
JOBS = "/api/jobs"
"""Prefix of a job's pattern rules."""
