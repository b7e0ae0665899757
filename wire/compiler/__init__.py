"""Compiles decoders and encoders of messages from their tables (`wire/schema.py`)."""
