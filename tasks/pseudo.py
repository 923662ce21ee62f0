"""Make the pseudo data of FedBR: means of clients' training examples or of a public data set, with soft labels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import atomic_folder, write_json
from tasks.parameters import explained, read_config, read_source, run_step

if TYPE_CHECKING:
    import numpy as np

    from fedcore.config import Pseudo
    from fedcore.data.federation import Federation


def main() -> None:
    """Write the folder; without a section ``pseudo`` one that says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--partition", type=Path, required=True, help="partition file")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    section = read_config().pseudo
    with atomic_folder(arguments.out) as folder:
        if section is None:
            write_json(folder / "meta.json", {"generator": None})
            return
        import numpy as np

        from fedcore.data import dataset, partitions, resources
        from fedcore.data.federation import Federation

        federation = Federation(dataset.load(arguments.dataset), partitions.load(arguments.partition))
        with explained():
            sets, facts = _sets(section, federation)
        inputs, targets = (np.stack(arrays) for arrays in zip(*sets, strict=True))
        resources.save(folder, inputs, targets, {**section.model_dump(), **facts})
    each = f"{section.transfers} sets of {section.rows}" if section.transfers > 1 else f"{section.rows}"
    print(f"{section.generator}, seed {section.seed}: {each} rows of pseudo data -> {arguments.out}")


def _sets(section: Pseudo, federation: Federation) -> tuple[list[tuple[np.ndarray, np.ndarray]], dict[str, Any]]:
    """Return every set's inputs and targets, and facts for ``meta.json``."""
    from fedcore.config import MixturePseudo
    from fedcore.data import pseudo

    rows, seed, examples, transfers = section.rows, section.seed, section.examples, range(section.transfers)
    if isinstance(section, MixturePseudo):
        proxy = read_source(section.proxy, "pseudo", "proxy")
        made = [pseudo.mixture(proxy, federation.dataset, rows, seed, examples, t) for t in transfers]
        return made, {"proxy_hash": proxy.content_hash}
    make = {"rsm": pseudo.rsm, "rsm_balanced": pseudo.rsm_balanced}[section.generator]
    return [make(federation, rows, seed, examples, t) for t in transfers], {}


if __name__ == "__main__":
    run_step(main)
