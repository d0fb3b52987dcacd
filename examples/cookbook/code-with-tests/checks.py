"""Runs the tests of a row against its solution, named in recipe.yaml."""

import subprocess
import sys

SECONDS = 10
MEGABYTES = 512

# Runs each function test_… that the code defines; the first that fails ends it.
RUNNER = f"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
try:
    resource.setrlimit(resource.RLIMIT_AS, ({MEGABYTES} << 20, {MEGABYTES} << 20))
except (ValueError, OSError):
    pass  # macOS does not let a process limit its memory
import sys
names = {{}}
exec(compile(sys.stdin.read(), "solution_and_tests.py", "exec"), names)
tests = [name for name, value in names.items() if name.startswith("test_") and callable(value)]
if not tests:
    sys.exit("there are no tests")
for name in tests:
    try:
        names[name]()
    except AssertionError as error:
        sys.exit(f"{{name}} failed {{error}}".strip())
"""


def run_tests(solution: str, tests: str) -> str | None:
    """What went wrong, or None. A process of its own, because the code may loop or exit."""
    code = f"{solution}\n\n{tests}\n"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", RUNNER],
            input=code,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {SECONDS} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with exit code {done.returncode}"
