"""ListOffsets by timestamp: where the answer may be, what one request may cost, and the walk over records."""
