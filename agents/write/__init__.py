"""The write path: validate, buffer, seal, store, commit, answer."""
