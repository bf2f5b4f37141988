"""Spark's data source: ``format("streambroker")`` for both directions."""

from pe_agent.datasource.source import StreambrokerDataSource

__all__ = ["StreambrokerDataSource"]

from pe_agent.workers import hide_hang_ups

hide_hang_ups()
