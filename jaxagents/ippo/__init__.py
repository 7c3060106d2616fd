"""The IPPO agents."""
