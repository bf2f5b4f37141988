"""Metrics, log file and reports of jobs."""
