"""Consumer groups, from the side of a client: their members, their offsets, and how they are looked at."""
