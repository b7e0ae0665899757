"""The read path: which bytes to read (pure), where they are kept, and how they become a Fetch answer."""
