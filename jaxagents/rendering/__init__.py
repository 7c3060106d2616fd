"""Pictures of episodes."""
