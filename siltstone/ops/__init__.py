"""Looking after a system: checks, reports, repair. What the operators' commands decide and do."""
