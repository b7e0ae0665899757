"""Finds the last record of each key, however many there are, by a shuffle of columns on Spark."""
