"""The options that many commands share, and wrong usage of them."""
