"""Read ``params.yaml`` and turn mistakes, here and in every step, into one line each and exit code 1."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from fedcore.config import Config, ConfigError, Problem, validate

if TYPE_CHECKING:
    from fedcore import config as settings
    from fedcore.data.dataset import Dataset


_TOO_DEEP = "nested too deeply"


class ParametersError(ValueError):
    """``params.yaml`` is wrong: one line per mistake, each with file and line."""


def read_config(path: Path | str = "params.yaml") -> Config:
    """Read and check the parameters.

    Raises
    ------
    ParametersError
        When the file is missing, is no YAML, or breaks a rule of `fedcore.config`.
    """
    document = _load(Path(path))
    try:
        return validate(_plain(document))
    except RecursionError:
        raise ParametersError(f"{path}: {_TOO_DEEP}") from None
    except ConfigError as error:
        raise ParametersError(explain(error.problems, path, document)) from None


def parse(text: str, where: str) -> Any:
    """Return a piece of YAML given on a command line, as plain values; `where` begins the message of a mistake."""
    try:
        return _plain(YAML(typ="rt").load(text))
    except RecursionError:
        raise ParametersError(f"{where}: {_TOO_DEEP}") from None
    except YAMLError as error:
        raise ParametersError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from None


def explain(problems: Iterable[Problem], path: Path | str = "params.yaml", document: Any = None) -> str:
    """Return one line per problem, ``file:line: key: message``."""
    if document is None:
        document = _load(Path(path))
    return "\n".join(f"{path}:{_line(document, problem.path)}: {problem}" for problem in problems)


@contextmanager
def explained() -> Iterator[None]:
    """Give a `ConfigError` raised inside the block its file and lines."""
    try:
        yield
    except ConfigError as error:
        raise ParametersError(explain(error.problems)) from None


def read_source(section: settings.Dataset, *where: str) -> Dataset:
    """Read the data set of a section that stands somewhere else than ``dataset``, at the keys `where`.

    Raises
    ------
    ParametersError
        When files are missing; its lines name the keys at `where`.
    """
    from fedcore.data import sources
    from tasks.progress import ProgressBar

    def moved(problem: Problem) -> Problem:
        path = (*where, *problem.path[1:]) if problem.path[:1] == ("dataset",) else problem.path
        return Problem(path, problem.message.replace("dataset.", f"{'.'.join(where)}."))

    with explained(), ProgressBar() as show:
        try:
            return sources.read(section, show)
        except ConfigError as error:
            raise ConfigError(map(moved, error.problems)) from None


def run_step(main: Callable[[], None]) -> None:
    """Run a command line's `main`; a mistake a person can mend becomes ``error: ...`` and exit code 1."""
    try:
        main()
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        message = _no_room(error) or _no_memory(error)
        if message is None and not isinstance(error, ValueError | OSError):
            raise
        for line in (message or str(error)).splitlines() or [type(error).__name__]:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on from the last checkpoint", file=sys.stderr)
        sys.exit(130)


def _no_room(error: Exception) -> str | None:
    """Return what to do when a disk or a quota is full; what the system says then often names no file."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    where = f"{error.filename}: " if error.filename else ""
    what = os.strerror(error.errno)
    return f"{where}{what}. Make room and run the same command again; a training goes on from its checkpoint"


def _no_memory(error: Exception) -> str | None:
    """Return what to do when memory is short; PyTorch says so by a `RuntimeError`, with its stack below."""
    said = str(error).partition("\n")[0]
    is_torch = isinstance(error, RuntimeError) and ("can't allocate memory" in said or "out of memory" in said)
    if not is_torch and not isinstance(error, MemoryError):
        return None
    return f"not enough memory ({said or 'no more is said'}). Free some, or make a size in params.yaml smaller"


def _load(path: Path) -> Any:
    try:
        return YAML(typ="rt").load(path)
    except RecursionError:
        raise ParametersError(f"{path}: {_TOO_DEEP}") from None
    except FileNotFoundError:
        raise ParametersError(f"{path}: does not exist; run from the project's root folder") from None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        message = " ".join((error.problem or "not valid YAML").split())
        raise ParametersError(f"{path}:{line}: {message}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise ParametersError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {_plain(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _line(document: Any, keys: tuple[str | int, ...]) -> int:
    """Return the 1-based line of the deepest key that exists."""
    line, node = 0, document
    for key in keys:
        try:
            line = node.lc.data[key][0]
            node = node[key]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return int(line) + 1
