"""The two orders scales are stored in, as index formulas.

`public`: row-major [..., rows, G]; the scale of (row r, group g) is element r*G + g.

`preordered_mma`: tiles of 128 rows x 4 groups, 512 bytes each, as block-scaled tensor cores read them; storage
[L, ceil(rows/128), ceil(G/4), 32, 4, 4], in which (r, g) is element

    [r // 128, g // 4, r % 32, (r % 128) // 32, g % 4]
    = byte ((r // 128) * ceil(G/4) + g // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + g % 4

Rows and groups past the end pad the last tile; what they hold plays no part.
The formulas are plain integer arithmetic: Python ints, NumPy arrays and traced integers all work.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

LAYOUTS = ("public", "preordered_mma")
TILE_ROWS, TILE_GROUPS = 128, 4
TILE_BYTES = TILE_ROWS * TILE_GROUPS
TILE_SHAPE = (32, 4, 4)  # (r % 32, (r % 128) // 32, g % 4)


def _ceil(x: Any, y: int) -> Any:
    return (x + y - 1) // y


def tiled_shape(rows: Any, groups: Any) -> tuple[Any, ...]:
    """Shape of the tiled storage of one [rows, groups] matrix, without the leading L."""
    return (_ceil(rows, TILE_ROWS), _ceil(groups, TILE_GROUPS), *TILE_SHAPE)


def tiled_index(row: Any, group: Any) -> tuple[Any, ...]:
    """Index of (row, group) in the tiled storage of one matrix, one entry per axis of `tiled_shape`."""
    return (row // TILE_ROWS, group // TILE_GROUPS, row % 32, row % TILE_ROWS // 32, group % TILE_GROUPS)


def tiled_offset(row: Any, group: Any, groups: Any) -> Any:
    """Byte of (row, group) in the tiled storage of one [*, groups] matrix."""
    tile = row // TILE_ROWS * _ceil(groups, TILE_GROUPS) + group // TILE_GROUPS
    return tile * TILE_BYTES + row % 32 * 16 + row % TILE_ROWS // 32 * 4 + group % TILE_GROUPS


def q_scale_shape(layout: str, tokens: Any, heads_q: Any, groups: int) -> tuple[Any, ...]:
    return (tokens, heads_q, groups) if layout == "public" else (heads_q, *tiled_shape(tokens, groups))


def k_scale_shape(layout: str, num_pages: Any, heads_kv: Any, groups: int, page: int = 128) -> tuple[Any, ...]:
    if layout == "public":
        return (num_pages, heads_kv, page, groups)
    return (num_pages * heads_kv, *tiled_shape(page, groups))


def to_tiled(scales: npt.ArrayLike, fill: int = 0) -> np.ndarray:
    """[..., rows, G] -> [..., *tiled_shape(rows, G)] (NumPy); padding bytes are `fill`."""
    scales = np.asarray(scales)
    rows, groups = scales.shape[-2:]
    out = np.full((*scales.shape[:-2], *tiled_shape(rows, groups)), fill, scales.dtype)
    out[(..., *tiled_index(np.arange(rows)[:, None], np.arange(groups)))] = scales
    return out


def from_tiled(tiled: npt.ArrayLike, rows: int, groups: int) -> np.ndarray:
    """The inverse of `to_tiled`: drops the padding."""
    return np.asarray(tiled)[(..., *tiled_index(np.arange(rows)[:, None], np.arange(groups)))]
