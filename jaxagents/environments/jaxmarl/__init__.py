"""JaxMARL environments behind the environment protocol.

The adapter imports only the environment protocol, spaces and the top-level modules, and JaxMARL's
modules as they are needed; `environments.registry` imports it.
"""
