"""Pattern language: stages, conditions, durations and their errors."""
