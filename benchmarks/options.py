"""What the commands have in common: options, and errors in one line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.images import Sources
from benchmarks.workloads import BUILDERS
from fedcore.config import ConfigError, Problem

_HERE = Path(__file__).parent


def add_data_options(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    """Add what chooses workloads and data."""
    parser.add_argument("--workloads", nargs="+", choices=list(BUILDERS), default=list(default), metavar="NAME")
    parser.add_argument("--root", type=Path, default=Path("data/raw"), help="folder that holds MNIST/raw (data/raw)")
    parser.add_argument(
        "--partition", type=Path, default=_HERE / "w1_partition.npz", help="who holds which row in w1 (.npz)"
    )
    parser.add_argument(
        "--data", choices=["files", "random"], default="files", help="random: bytes of the same shapes, no files needed"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of every client's rows that is kept (1.0)")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what chooses rounds and where they run."""
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds, after one that is not (5)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:<number> or auto (cpu)")
    parser.add_argument("--seed", type=int, default=0)


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got '{text}'")
    return value


def chosen_sources(arguments: argparse.Namespace) -> Sources:
    """Return where the data come from."""
    return Sources(arguments.root, arguments.partition, arguments.data == "random")


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Return ``key=value`` pairs as keys of the ``train`` section; values are JSON or else text.

    Raises
    ------
    ConfigError
        If one has no ``=``.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError([Problem(("--set",), f"expected KEY=VALUE of the train section, got '{pair}'")])
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def write_json(path: Path, content: Any) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    temporary.replace(path)


def one_thread() -> None:
    """Use one thread per operation, as training does; before anything else is computed."""
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that are started from here
    torch.set_num_threads(1)


def run_command(main: Callable[[], None]) -> None:
    """Run a command; what is wrong is one line and exit code 1."""
    try:
        main()
    except (ConfigError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
