"""Let jaxagents 0.2.5 be imported: it annotates with `Callable[..., [int]]`.

The hash of that, which `Optional` takes of it, fails where Python is older than 3.13.
"""

import typing

typing._CallableGenericAlias.__hash__ = lambda self: hash(repr(self))
