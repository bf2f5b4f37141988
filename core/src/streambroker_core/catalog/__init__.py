"""Catalog of Exports: search by words, an AsyncAPI document, and entities for Backstage."""
