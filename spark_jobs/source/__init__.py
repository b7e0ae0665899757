"""Topics as a Spark source, for batch and streaming: `spark.read.format("siltstone")`."""
