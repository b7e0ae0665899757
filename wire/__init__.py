"""The Kafka protocol, sans-IO: bytes in, values out. This room imports nothing of ours but `runtime.errors`."""
