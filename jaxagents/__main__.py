"""Run the command `jaxagents` as `python -m jaxagents`."""

import sys

from jaxagents.cli.main import main

sys.exit(main())
