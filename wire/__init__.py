"""The Kafka protocol, sans-IO: bytes in, values out. Imports nothing of ours but `runtime.errors`."""
