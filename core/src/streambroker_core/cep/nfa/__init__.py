"""Automaton of a pattern and its matchers."""
