"""The rules that a planned stack must keep, by subject."""
