"""Found by Spark, which imports modules named ``pyspark_*`` and registers their DefaultSource."""

from pe_agent.datasource.source import StreambrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
