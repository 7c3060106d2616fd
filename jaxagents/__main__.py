"""`python -m jaxagents` is the command `jaxagents`."""

import sys

from jaxagents.cli.main import main

sys.exit(main())
