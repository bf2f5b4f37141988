"""Imports of an agent: readers, offset planning, and watches of other agents."""
