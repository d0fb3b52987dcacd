"""An edit of a function is noticed, and nothing else is."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import pytest

from seedbed.columns.code import code_digest, describe_code, same_code


def made(source: str, name: str = "f") -> Any:
    """What a module of this source calls so."""
    module: dict[str, Any] = {"__name__": "made", "functools": functools}
    exec(compile(source, "made.py", "exec"), module)
    return module[name]


BASE = "def f(n):\n    return n * 2 + len({'a', 'b'})"


@pytest.mark.parametrize(
    "same",
    [
        "\n\n# why\ndef f(n):\n    # because\n    return (n * 2\n        + len({'a', 'b'}))",
        "def f(n: int) -> int:\n    '''Doubles.'''\n    return n * 2 + len({'a', 'b'})",
    ],
)
def test_digest_ignores_comments_docstrings_and_positions(same: str) -> None:
    """Comments, docstrings, annotations and positions do not change the digest."""
    assert code_digest(made(same)) == code_digest(made(BASE))


@pytest.mark.parametrize(
    "other",
    [
        "def f(n):\n    return n * 3 + len({'a', 'b'})",
        "def f(n):\n    return n + 2 + len({'a', 'b'})",
        "def f(m):\n    return m * 2 + len({'a', 'b'})",
        "def f(n):\n    return n * 2 + max({'a', 'b'})",
        "def f(n, k=1):\n    return n * 2 + len({'a', 'b'})",
        "async def f(n):\n    return n * 2 + len({'a', 'b'})",
    ],
)
def test_digest_depends_on_code(other: str) -> None:
    """Constants, operations, names, parameters and the kind of function change the digest."""
    assert code_digest(made(other)) != code_digest(made(BASE))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f = lambda n: 'a'", "f = lambda n: 'b'"),
        ("def f(n, k=1): return k", "def f(n, k=2): return k"),
        ("def f(n, *, k=1): return k", "def f(n, *, k=2): return k"),
        ("def f(n):\n    return [x + 1 for x in n]", "def f(n):\n    return [x + 2 for x in n]"),
        (
            "def f(n):\n    def g():\n        return 1\n    return g",
            "def f(n):\n    def g():\n        return 2\n    return g",
        ),
        ("def g(n): return 1\nf = functools.partial(g, 1)", "def g(n): return 1\nf = functools.partial(g, 2)"),
        ("class f:\n    def generate(self): return 1", "class f:\n    def generate(self): return 2"),
        ("class f:\n    @staticmethod\n    def g(): return 1", "class f:\n    @staticmethod\n    def g(): return 2"),
        ("class f:\n    @property\n    def g(self): return 1", "class f:\n    @property\n    def g(self): return 2"),
        (
            "class b:\n    def g(self): return 1\nclass f(b): pass",
            "class b:\n    def g(self): return 2\nclass f(b): pass",
        ),
        (
            "def w(g):\n    @functools.wraps(g)\n    def i(*a): return g(*a)\n    return i\n@w\ndef f(n): return 1",
            "def w(g):\n    @functools.wraps(g)\n    def i(*a): return g(*a)\n    return i\n@w\ndef f(n): return 2",
        ),
    ],
)
def test_digest_includes_nested_code(one: str, other: str) -> None:
    """Lambdas, defaults, comprehensions, inner and wrapped functions, partials and methods count."""
    assert code_digest(made(one)) == code_digest(made(one))
    assert code_digest(made(one)) != code_digest(made(other))
    if isinstance(made(one), type):
        assert code_digest(made(one)()) == code_digest(made(one)) != code_digest(made(other)())


def test_bound_methods_have_the_digest_of_their_function() -> None:
    """Binding a method does not change its digest."""
    cls = made("class f:\n    def g(self): return 1")
    assert code_digest(cls().g) == code_digest(cls.g)


def test_builtins_have_no_digest() -> None:
    """Code that is not written in Python is identified by its name."""
    assert code_digest(len) is None
    assert code_digest(str.upper) is None
    assert code_digest(int) is None
    assert describe_code(len) == {"name": "builtins:len"}


def test_same_code_compares_digests_or_names() -> None:
    """Digests are compared if one version of Python computed both, names otherwise."""
    now, edited = {"name": "a:f", "digest": "cpython-311-0:1"}, {"name": "a:f", "digest": "cpython-311-0:2"}
    assert not same_code(now, edited)
    assert same_code(now, {**now, "name": "b:g"})
    assert same_code(now, {"name": "a:f", "digest": "cpython-312-0:9"})
    assert not same_code(now, {"name": "b:f", "digest": "cpython-312-0:9"})
    assert same_code(now, {"name": "a:f"})
    assert not same_code({"name": "a:f"}, {"name": "a:g"})


def test_digest_is_equal_in_another_process() -> None:
    """The digest does not depend on the iteration order of sets."""
    script = f"from seedbed.columns.code import code_digest\nspace = {{}}\nexec({BASE!r}, space)\n"
    found = {
        subprocess.run(
            [sys.executable, "-c", script + "print(code_digest(space['f']))"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert found == {code_digest(made(BASE))}
