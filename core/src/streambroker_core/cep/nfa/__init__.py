"""The automaton of a pattern and its matchers."""
