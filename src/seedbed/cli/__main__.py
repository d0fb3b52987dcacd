"""`python -m seedbed.cli` runs the same command."""

from __future__ import annotations

import sys

from . import main

sys.exit(main())
