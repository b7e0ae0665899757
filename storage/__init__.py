"""Object stores behind one small Protocol, and the format of the files that we keep in them."""
