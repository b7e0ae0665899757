"""The real AWS provider, where it is at hand, and the server that answers it in place of AWS."""
