"""The partition as a picture: examples per label and client, as inline SVG text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tasks.figures import BOTTOM, RIGHT, short, svg


def heat_map(
    counts: Sequence[Sequence[int]],
    labels: Sequence[str],
    clients: Sequence[int],
    title: str,
    distances: Sequence[float] = (),
) -> str:
    """Return the label-by-client table of example counts, client sizes as bars above it.

    Parameters
    ----------
    counts : K rows of M counts
    labels : K names
    clients : M client ids, left to right
    distances : M earth mover's distances, 0 to 2, drawn as bars below, or none
    """
    left, top, cell = max(70, min(150, 12 + 7 * max(map(len, labels)))), 66, 26
    column = max(9.0, min(52.0, (1100 - left - RIGHT) / len(clients)))
    below = 52 if distances else 0
    width, height = left + column * len(clients) + RIGHT, top + cell * len(labels) + below + BOTTOM
    sizes = [sum(row[i] for row in counts) for i in range(len(clients))]
    largest, most = max(1, *sizes), max(1, *(max(row) for row in counts))
    parts = [f'<text class="t end" x="{left - 8}" y="{top - 10}">examples</text>']
    for i, (client, size) in enumerate(zip(clients, sizes, strict=True)):
        x, tall = left + column * i, 40 * size / largest
        parts.append(
            f'<rect class="size" x="{x + 1:.1f}" y="{top - 6 - tall:.1f}" width="{column - 2:.1f}"'
            f' height="{tall:.1f}"><title>client {client}: {size} examples</title></rect>'
        )
        middle = x + column / 2
        if column >= 22:
            parts.append(f'<text class="t mid small" x="{middle:.1f}" y="{top - 9 - tall:.1f}">{short(size)}</text>')
        if column >= 14 or i % 5 == 0:
            parts.append(f'<text class="t mid" x="{middle:.1f}" y="{height - BOTTOM + 16}">{client}</text>')
    for k, (name, row) in enumerate(zip(labels, counts, strict=True)):
        y = top + cell * k
        parts.append(f'<text class="t end" x="{left - 8}" y="{y + cell / 2 + 4}">{escape(name[:20])}</text>')
        for i, count in enumerate(row):
            # The square root keeps the small counts, which make the skew, visible beside the large ones.
            strength = math.sqrt(count / most)
            opacity = f"{0.08 + 0.92 * strength:.2f}" if count else "0.03"
            x = left + column * i
            parts.append(
                f'<rect class="cell" x="{x + 0.5:.1f}" y="{y + 0.5}" width="{column - 1:.1f}" height="{cell - 1}"'
                f' fill-opacity="{opacity}"><title>client {clients[i]}, label {escape(name)}: {count}</title></rect>'
            )
            if count and column >= 22:
                tone = "on" if strength > 0.55 else "off"
                place = f'x="{x + column / 2:.1f}" y="{y + cell / 2 + 4}"'
                parts.append(f'<text class="t mid small {tone}" {place}>{short(count)}</text>')
    if distances:
        parts += _distance_bars(distances, clients, left, column, top + cell * len(labels) + 8)
    parts.append(f'<text class="t mid" x="{(left + width) / 2:.1f}" y="{height - 6}">client</text>')
    return svg(round(width), height, title, parts)


def _distance_bars(
    distances: Sequence[float], clients: Sequence[int], left: float, column: float, top: float
) -> list[str]:
    """Return bars from `top` downwards, as long as the distances; 40 units are 2, the most there can be."""
    parts = [f'<text class="t end" x="{left - 8}" y="{top + 14}">distance</text>']
    for i, (client, distance) in enumerate(zip(clients, distances, strict=True)):
        tall = 20 * distance if math.isfinite(distance) else 0.0
        parts.append(
            f'<rect class="distance" x="{left + column * i + 1:.1f}" y="{top:.1f}" width="{column - 2:.1f}"'
            f' height="{tall:.1f}"><title>client {client}: earth mover\'s distance {distance:.2f}</title></rect>'
        )
    return parts
