"""What draws an episode: one module per kind of environment, chosen by `registry`."""
