"""The parts of `benchmarks/first_seconds.py`."""
