"""What is deleted, and by whom: retention, the janitor, orphans, and the metadata backup that is written before."""
