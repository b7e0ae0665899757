"""The messages by which a client proves who it is (SASL): state machines for both ends, bytes in and bytes out."""
