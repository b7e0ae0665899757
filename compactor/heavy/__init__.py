"""Merges too large for one process: cut into units, run on a cluster such as Spark, committed by the compactor."""
