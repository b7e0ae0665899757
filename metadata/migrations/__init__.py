"""Alembic migrations. Only `siltstone migrate` runs them (metadata/migrations/migrate.py); agents only check the
revision."""
