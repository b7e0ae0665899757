"""Settings: one table of declarations, how a value is read and checked, and what two settings must agree on."""
