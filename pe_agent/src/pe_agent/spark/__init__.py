"""Sessions, workers and batch sizes of Spark."""
