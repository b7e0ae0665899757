"""An export's tasks as units of a stored plan, which any submitter can run."""
