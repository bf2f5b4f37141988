"""Rows from agents and to agents: blocks of a plan, stages of a batch, and the reader's lease."""
