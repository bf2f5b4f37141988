"""Read and write manifests of Exports, Imports and rules."""
