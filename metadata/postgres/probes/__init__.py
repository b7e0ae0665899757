"""Looks at a Postgres from outside: what it is, what lies before it, and how busy it is."""
