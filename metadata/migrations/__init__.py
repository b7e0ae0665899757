"""Alembic migrations, run by `siltstone migrate` alone (metadata/migrations/migrate.py); agents only check the
revision."""
