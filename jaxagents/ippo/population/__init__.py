"""Populations: members, their training, and the selection among them."""
