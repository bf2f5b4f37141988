"""Read and change Exports, Imports and pattern processors."""
