"""Who may do what in a run: ACLs that come and go under load, and the judge of what got through."""
