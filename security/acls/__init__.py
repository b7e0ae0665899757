"""ACLs: their values, and the matcher that judges by them."""
