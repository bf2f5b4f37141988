"""The agent of a job as a process: start, adopt and end it, and relay its log."""
