"""TLS from files: what they must hold (pure), the `ssl.SSLContext`s made of them, and their renewal while running."""
