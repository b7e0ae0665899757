"""The latest record of each key of a topic, found by a shuffle of key hashes over all tasks of a Spark."""
