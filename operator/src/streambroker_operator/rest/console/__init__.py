"""What the page in the browser is made of: graph, history, checks of texts, and its files."""
