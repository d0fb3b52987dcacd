"""Nothing needs Linux: everything that a user does works without what only Linux has.

The tests run on Linux. A program from which the names and files that macOS does not have are removed stands in for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import seedbed

# What CPython has on Linux and not on macOS.
LINUX_ONLY = {
    "os": "copy_file_range eventfd eventfd_read eventfd_write fdatasync getrandom getxattr listxattr memfd_create "
    "pidfd_open posix_fadvise posix_fallocate removexattr sched_getaffinity sched_getparam sched_getscheduler "
    "sched_setaffinity sched_setparam sched_setscheduler setns setxattr splice timerfd_create unshare "
    "O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE",
    "fcntl": "F_ADD_SEALS F_GETPIPE_SZ F_GETSIG F_GET_SEALS F_NOTIFY F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_SETLEASE "
    "F_SETPIPE_SZ F_SETSIG",
    "resource": "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RUSAGE_THREAD",
    "signal": "SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    "socket": "AF_ALG AF_NETLINK AF_PACKET AF_VSOCK MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_MARK "
    "SO_PASSCRED SO_PEERCRED TCP_CORK TCP_DEFER_ACCEPT TCP_KEEPIDLE TCP_QUICKACK TCP_USER_TIMEOUT",
}

PROGRAM = """
import importlib, sys
from pathlib import Path

names = {names!r}
for module, listed in names.items():
    found = importlib.import_module(module)
    for name in listed.split():
        if hasattr(found, name):
            delattr(found, name)
        if name in getattr(found, "__all__", ()):
            found.__all__.remove(name)
import select
del select.poll  # macOS cannot poll a terminal

def watch(event, arguments):
    # Its own standard library looks at /proc nowhere that matters; seedbed must not.
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(arguments[0])

sys.addaudithook(watch)

import seedbed as sb
from seedbed.cli import main
from seedbed.testing import serve_openai_sync

def double(number: int) -> int:
    return 2 * number

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with serve_openai_sync() as server:
        model = sb.OpenAICompatible(base_url=f"{{server.url}}/v1", model="small", max_parallel_requests=4)
        recipe = sb.Recipe(
            seed=1,
            models={{"writer": model}},
            columns=[
                sb.Uniform("number", low=1, high=9, decimals=0),
                sb.Custom("double", double),
                sb.LLMText("text", model="writer", prompt="About {{{{ double }}}}."),
            ],
            processors=[sb.Deduplicate()],
        )
        assert sb.preview(recipe, rows=2).report.written == 2
        assert sb.build(recipe, rows=20, out=folder / "a", progress="lines").report.requested == 20
        assert sb.resume(folder / "a", recipe, rows=25).report.requested == 25
    assert sb.Dataset.open(folder / "a").to_polars().height > 0
    assert sb.simulate(recipe, rows=50, seeds=1).seconds > 0
    number = sb.Column("number", lambda rows: list(rows), kind="from_scratch")
    columns = [number, sb.Column("double", double, process=True)]
    assert sb.build(columns, rows=3, out=folder / "b").to_polars()["double"].to_list() == [0, 2, 4]
    assert main(["inspect", str(folder / "a"), "--verify"]) == 0
"""


def test_nothing_needs_linux(tmp_path: Path) -> None:
    """Preview, build, resume, processes, HTTP, simulate and inspect work without what only Linux has."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(names=LINUX_ONLY), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(seedbed.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, program, tmp_path], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


def test_nothing_names_what_only_linux_has() -> None:
    """The source reads neither /proc nor /sys, and uses the names above only where they may be missing."""
    names = [f"{module}.{name}" for module, listed in LINUX_ONLY.items() for name in listed.split()]
    found = [
        f"{path.name}: {name}"
        for path in Path(seedbed.__file__).parent.rglob("*.py")
        for name in (*names, '"/proc', '"/sys', "select.epoll", "inotify", "prctl")
        if re.search(rf"{re.escape(name)}\b", path.read_text(encoding="utf-8"))
    ]
    assert not found
