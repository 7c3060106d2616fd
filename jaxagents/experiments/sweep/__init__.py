"""Sweeps: searches for configurations, whose trials train as populations."""
