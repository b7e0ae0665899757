"""ACLs that come and go under load, and the judge of all that got through."""
