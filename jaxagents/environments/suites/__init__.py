"""Suites of JAX environments that are extras: an adapter per suite, and their ids.

`catalogue` lists the ids without importing anything; `environments.registry` imports an adapter
when one of its environments is made. An adapter is a module named like the suite, with a function
``make_<suite>(name, **env_kwargs)``.
"""
