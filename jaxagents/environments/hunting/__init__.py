"""Hunting, the built-in predator-prey environment, with discrete or continuous actions.

It imports only the environment protocol, spaces, the writing of GIFs and the top-level modules;
`environments.registry` constructs it.
"""
