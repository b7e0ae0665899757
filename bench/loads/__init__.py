"""The loads that benchmarks run: Kafka clients as processes, and input files of merges."""
