"""The sections of `benchmarks/accelerator.py`."""
