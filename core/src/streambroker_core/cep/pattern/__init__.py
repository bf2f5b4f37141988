"""The pattern language: stages, conditions, durations and their errors."""
