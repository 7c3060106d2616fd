"""A page about runs, which needs nothing beside itself."""
