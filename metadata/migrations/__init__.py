"""Alembic migrations, run by `siltstone migrate` alone (metadata/migrate.py); agents only check the revision."""
