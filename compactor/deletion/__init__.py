"""Everything that deletes: retention, the janitor, orphans; and the metadata backup, which is written first."""
