"""`python -m seedbed.cli` is the command too."""

from __future__ import annotations

import sys

from . import main

sys.exit(main())
