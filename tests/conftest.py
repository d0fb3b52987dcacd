"""What holds for all tests: Ctrl-C is heard, and hypothesis has profiles; tests/README.md says when to use which."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# Nothing here depends on how busy the machine is: no deadline, and no complaint that drawing examples took long.
_STEADY = settings(
    settings.get_profile("default"), deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)

# Where a change is judged, the same commit must get the same verdict: new examples are looked for on the desk of
# whoever works on it, and by the thorough profile everywhere.
settings.register_profile("fast", _STEADY, max_examples=200, derandomize="CI" in os.environ)
settings.register_profile("thorough", _STEADY, max_examples=3_000, stateful_step_count=100)
settings.load_profile(os.environ.get("SEEDBED_HYPOTHESIS", "fast"))

# A shell starts what it runs in the background deaf to Ctrl-C, and every process that a test starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Builds in a script show their progress; here nobody looks at it. Tests of progress ask for it.
os.environ["SEEDBED_PROGRESS"] = "none"
