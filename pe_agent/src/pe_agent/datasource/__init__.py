"""Spark's data source: ``format("streambroker")`` for both directions."""

from pe_agent.datasource.source import StreambrokerDataSource

__all__ = ["StreambrokerDataSource"]
