from __future__ import annotations

from seedbed import errors
from seedbed.cli.exit_codes import ExitCode, exit_code


def stops() -> list[type[errors.BuildStopped]]:
    """Every kind of early stop."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.BuildStopped)]


def test_every_way_to_stop_has_its_own_code() -> None:
    """No two kinds of early stop share an exit code, and none looks like success or bad input."""
    codes = {kind: exit_code(kind.__new__(kind)) for kind in stops()}
    assert len(set(codes.values())) == len(codes)
    assert not {ExitCode.OK, ExitCode.FAILED, ExitCode.BAD_INPUT} & set(codes.values())


def test_others_have_the_code_of_their_kind() -> None:
    """Bad input is 2, a bad dataset 3, Ctrl-C 130 and an unexpected error 1."""
    assert exit_code(errors.ConfigError("x")) == 2
    assert exit_code(errors.DatasetGenerationError(["x"])) == 2
    assert exit_code(errors.OutputDirectoryError("x")) == 2
    assert exit_code(errors.ManifestError("x")) == 3
    assert exit_code(KeyboardInterrupt()) == 130
    assert exit_code(ZeroDivisionError()) == 1
