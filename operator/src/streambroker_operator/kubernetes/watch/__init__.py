"""Watch resources and keep them in a cache."""
