"""What this machine can do at best, and what a process used."""
