"""The imports of an agent: readers, what they are to read next, and the agents that have it."""
