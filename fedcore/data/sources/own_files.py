"""The files of a user's own data: do they exist?"""

from __future__ import annotations

from pathlib import Path

from fedcore.config import ConfigError, CsvData, NpzData, ParquetData, Problem, TableData, nearest


def own_files(config: ParquetData | CsvData | TableData | NpzData) -> list[Path]:
    """Return the paths of ``files``, then those of ``test_files``; ConfigError names one that is not there."""
    for key in ("files", "test_files"):
        for number, name in enumerate(getattr(config, key)):
            if not Path(name).is_file():
                there = sorted(path.name for path in Path(name).parent.glob(f"*{Path(name).suffix}"))
                hint = nearest(Path(name).name, there) if there else ""
                raise ConfigError([Problem(("dataset", key, number), f"'{name}' does not exist{hint}")])
    return [Path(name) for name in (*config.files, *config.test_files)]
