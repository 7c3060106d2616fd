"""What `benchmarks/peers.py` compares with; see the README."""
