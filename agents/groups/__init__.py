"""Consumer groups: who owns them, their state machines, their offsets."""
