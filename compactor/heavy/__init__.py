"""Merges too big for one process: cut into units that are small merges, run by an engine elsewhere, committed here."""
