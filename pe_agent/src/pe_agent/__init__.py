"""The agent and the Spark data source of streambroker: what a PySpark job imports.

pe = pe_agent.start(spark, job="alerts", broker="http://…")
trades = pe.subscribe("trades", 'kind == "trade"', filter="price > 10.0")
query = pe.publish(frame, "alerts", properties={"kind": "alert"}, checkpoint="…")
"""

from pe_agent.pe import PE, start

__all__ = ["PE", "start"]
