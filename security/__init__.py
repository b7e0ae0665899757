"""The identity, rights and quotas of clients: values and rules, without I/O, clock or chance.

Both ends use this room: agents judge by it, and the commands and our own Kafka client prove themselves by it.
"""
