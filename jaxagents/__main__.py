"""`python -m jaxagents` is the command `jaxagents`."""

import sys

from jaxagents.cli import main

sys.exit(main())
