"""JaxMARL's environments, adapted to the protocol."""
