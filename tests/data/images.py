"""Small images that differ from one another, encoded, and in parquet files as hubs write them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

COLOURS = np.arange(7 * 32 * 32 * 3, dtype=np.int64).reshape(7, 32, 32, 3) * 37 % 251
COLOURS = COLOURS.astype(np.uint8)  # [7, H, W, 3]
PLANES = COLOURS.transpose(0, 3, 1, 2)


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind)
    return stream.getvalue()


def write_table(
    path: Path,
    images: Sequence[bytes | None],
    metadata: dict[str, str] | None = None,
    image: str = "image",
    plain: bool = False,
    **labels: Any,
) -> Path:
    """Write a parquet file as hubs do: a struct of bytes and path, columns of labels, names in the metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [None if content is None else {"bytes": content, "path": "x.png"} for content in images]
    column = pa.array(list(images), pa.binary()) if plain else pa.array(rows, kind)
    columns = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in labels.items()}
    table = pa.table({image: column, **columns})
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=3)
    return path


PNGS = [encoded(array) for array in COLOURS]
