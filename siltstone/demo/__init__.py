"""`siltstone demo`: a real data set through real clients, a real agent and a real store, and back again."""
