"""The rules that both stores share: judgement of batches and merges, retention, invariants, codecs. Pure."""
