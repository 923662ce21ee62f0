"""Make the virtual data of VHL: labelled noise images, with a contact sheet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.files import atomic_folder, write_json
from tasks.parameters import read_config, run_step

if TYPE_CHECKING:
    import numpy as np

SAMPLES = 10  # per class on the contact sheet


def main() -> None:
    """Write the folder; without a section ``virtual`` one that says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    section = read_config().virtual
    with atomic_folder(arguments.out) as folder:
        if section is None:
            write_json(folder / "meta.json", {"generator": None})
            return
        from fedcore.data import dataset, resources, virtual

        data = dataset.load(arguments.dataset)
        if len(data.input_shape) != 3:
            raise ValueError(f"virtual: needs images, data set '{data.name}' has inputs of shape {data.input_shape}")
        channels, height, width = data.input_shape
        images, labels = virtual.noise((channels, height, width), data.num_classes, section.per_class, section.seed)
        resources.save(folder, images, labels, section.model_dump())
        _contact_sheet(folder / "contact.png", images, section.per_class)
    print(f"{section.generator}, seed {section.seed}: {len(images)} virtual images -> {arguments.out}")


def _contact_sheet(path: Path, images: np.ndarray, per_class: int) -> None:
    """Draw the first samples of every class, a row per class, enlarged to at least 32 pixels."""
    import numpy as np
    from PIL import Image

    chosen = images.reshape(-1, per_class, *images.shape[1:])[:, :SAMPLES]
    factor = max(1, -(-32 // max(images.shape[2:])))
    tiles = chosen.repeat(factor, axis=3).repeat(factor, axis=4)
    framed = np.pad(tiles, ((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)), constant_values=255)
    classes, samples, channels, height, width = framed.shape
    sheet = framed.transpose(0, 3, 1, 4, 2).reshape(classes * height, samples * width, channels)
    Image.fromarray(sheet[..., 0] if channels == 1 else sheet[..., :3]).save(path)


if __name__ == "__main__":
    run_step(main)
