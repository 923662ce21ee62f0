"""Make the virtual data of VHL: labelled images, the same for every client, with a contact sheet."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contact_sheet import write_contact_sheet
from tasks.files import atomic_folder, write_json
from tasks.parameters import explained, read_config, read_source, run_step

if TYPE_CHECKING:
    import numpy as np

    from fedcore.config import MethodBlock, Virtual
    from fedcore.data.dataset import Dataset

_PATIENCE = 10.0  # seconds between two lines of progress


def main() -> None:
    """Write the folder; without a section ``virtual`` one that says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    config = read_config()
    section = config.virtual
    with atomic_folder(arguments.out) as folder:
        if section is None:
            write_json(folder / "meta.json", {"generator": None})
            return
        import torch

        from fedcore.data import dataset, resources

        # The last bits of a convolution depend on the number of threads, and with them some pixels.
        torch.set_num_threads(1)
        with explained():
            data = dataset.load(arguments.dataset)
            images, labels, facts = _images(section, data, _num_classes(section, data, config.methods))
        resources.save(folder, images, labels, {**section.model_dump(), **facts})
        write_contact_sheet(folder / "contact.png", images, section.per_class)
    print(f"{section.generator}, seed {section.seed}: {len(images)} virtual images -> {arguments.out}")


def _images(section: Virtual, data: Dataset, num_classes: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return images, labels, and facts for ``meta.json``."""
    from fedcore import config as settings
    from fedcore.config import ConfigError, Problem
    from fedcore.data import virtual

    if len(data.input_shape) != 3:
        message = f"needs images, data set '{data.name}' has inputs of shape {data.input_shape}"
        raise ConfigError([Problem(("virtual",), message)])
    channels, height, width = data.input_shape
    asked = ((channels, height, width), num_classes, section.per_class, section.seed)
    progress = _Progress(section.generator)
    match section:
        case settings.NoiseVirtual():
            return *virtual.noise(*asked, section.spread), {}
        case settings.StyleganVirtual(latent=latent, mean_spread=mean_spread, spread=spread, width=layer_width):
            return *virtual.stylegan(*asked, latent, mean_spread, spread, layer_width, progress), {}
        case settings.CnnVirtual(latent=latent, width=layer_width):
            steps = (section.diversity_steps, section.diversity_batch, section.diversity_lr)
            return *virtual.cnn(*asked, latent, layer_width, *steps, progress), {}
        case settings.ImagesVirtual(classes=classes):
            names = classes if isinstance(classes, list) else None
            source = read_source(section.source, "virtual", "source")
            images, labels = virtual.images(source, *asked, names)
            chosen = virtual.chosen_classes(source, num_classes, section.seed, names)
            facts = {"source_hash": source.content_hash, "chosen_classes": [source.class_names[c] for c in chosen]}
            return images, labels, facts


def _num_classes(section: Virtual, data: Dataset, methods: Mapping[str, MethodBlock]) -> int:
    """Return the number of virtual classes: that of the labels, unless a method says which label each goes with."""
    from fedcore.config import ConfigError, Problem

    classes = section.classes
    if classes is None:
        return data.num_classes
    number = len(classes) if isinstance(classes, list) else classes
    maps = [block.add["vhl"].get("labels") for block in methods.values() if "vhl" in block.add]
    if number != data.num_classes and number not in [len(labels) for labels in maps if isinstance(labels, list)]:
        message = (
            f"{number} virtual classes do not map to the {data.num_classes} labels of '{data.name}'."
            f" Valid: {data.num_classes}, null, or name the label of each: add: {{vhl: {{labels: [...]}}}}"
        )
        raise ConfigError([Problem(("virtual", "classes"), message)])
    return number


class _Progress:
    """Prints how far a slow generator is, and how long it may still take."""

    def __init__(self, generator: str):
        self.generator = generator
        self.began = self.shown = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Print a line when the last one is old enough."""
        now = time.monotonic()
        if now - self.shown < _PATIENCE:
            return
        self.shown = now
        left = (now - self.began) / done * (total - done)
        print(f"{self.generator}: {done / total:.0%}, about {left / 60:.0f} min left", flush=True)


if __name__ == "__main__":
    run_step(main)
