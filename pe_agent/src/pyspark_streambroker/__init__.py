"""Found by Spark, which imports modules named pyspark_* and registers their DefaultSource."""
