"""The stand-in for the AWS provider: its schemas, its messages, and plausible answers."""
