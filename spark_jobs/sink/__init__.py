"""Topics as a Spark sink, for batch and streaming: `df.write.format("siltstone")`, through the agents."""
