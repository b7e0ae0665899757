"""The durable metadata store: Postgres 15 or later, over SQLAlchemy Core and asyncpg."""
