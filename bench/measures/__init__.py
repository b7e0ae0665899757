"""The best that this machine can do, and the resources that a process used."""
