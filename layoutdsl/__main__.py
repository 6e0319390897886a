"""`python -m layoutdsl` is the command `layoutdsl`."""

import sys

from layoutdsl.cli import main

sys.exit(main())
