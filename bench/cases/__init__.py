"""The benchmarks, one module each: `run(size)` yields its tables."""
