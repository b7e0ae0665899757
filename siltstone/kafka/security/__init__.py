"""How our Kafka client proves itself and whom it trusts: read from a `client.properties`, done over TLS and SASL."""
