"""The brokers: an asyncio shell around pure protocol, write path and read path."""
