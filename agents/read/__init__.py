"""The read path: which bytes (pure), where they are kept, and how they become a Fetch answer."""
