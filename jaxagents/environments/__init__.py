"""Environments: the protocol, the registry and the adapters."""
