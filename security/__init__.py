"""Who a client is and what it may do: values and rules, without I/O, clock or chance.

Both ends use this room: agents judge by it, and the commands and our own Kafka client prove themselves by it.
"""
