"""The plan of a heavy merge: values, the cut into units, and the stored form. Pure."""
