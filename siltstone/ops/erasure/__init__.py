"""Erasures as commands see them: the request, its state, its report, and the check that a key is nowhere."""
