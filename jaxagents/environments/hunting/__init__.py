"""A predator hunts a prey: the built-in environment, with discrete or continuous actions."""
