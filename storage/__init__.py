"""Object stores behind one small Protocol, and the format of what we keep in them."""
