"""The programs around the clients: one line protocol (`protocol.py`), in Python, Java and Go."""
