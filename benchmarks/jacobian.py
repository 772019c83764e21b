"""How exact the page's Jacobian is: its smallest singular value beside that of better images.

    python benchmarks/jacobian.py [--points 8]

The page renders at 64 x 64 in standard quality and averages 2 x 2 pixels
(threedident/explore/scene_part.py). Here the same is done in reference quality, with two seeds,
whose mean it is compared with, and at 32 x 32 without averaging.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.explore.scene_part import AVERAGED, JACOBIAN_VIEW, STEP
from threedident.latents import sample_raw_latents
from threedident.render import jacobian

SIDE = JACOBIAN_VIEW.resolution // AVERAGED


def averaged(matrix: npt.NDArray[Any], averaged_pixels: int) -> npt.NDArray[np.float64]:
    count, columns = len(matrix), matrix.shape[2]
    shape = (count, SIDE, averaged_pixels, SIDE, averaged_pixels, 3, columns)
    return matrix.astype(np.float64).reshape(shape).mean((2, 4)).reshape(count, -1, columns)


def of(raw: npt.NDArray[np.float32], quality: str, pixels: int, seed: int = 0) -> Any:
    side = SIDE * pixels
    matrix = jacobian(raw, "3dident", step=STEP, resolution=side, quality=quality, seed=seed)
    return averaged(matrix, pixels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=8)
    points = parser.parse_args().points
    raw = sample_raw_latents(range(points), seed=5, split="test")
    better = (of(raw, "reference", AVERAGED) + of(raw, "reference", AVERAGED, seed=1)) / 2
    singular = np.linalg.svd(better, compute_uv=False)
    # The smallest that is not 0: a hue in its flat part changes nothing.
    places = [int(np.flatnonzero(row > 1e-6 * row[0])[-1]) for row in singular]
    print("smallest singular value, divided by that of reference quality; error of the matrix")
    for name, pixels in (("64 x 64, averaged", AVERAGED), ("32 x 32", 1)):
        ours = of(raw, "standard", pixels)
        values = np.linalg.svd(ours, compute_uv=False)
        ratios = [values[i, k] / singular[i, k] for i, k in enumerate(places)]
        errors = np.linalg.norm(ours - better, axis=(1, 2)) / np.linalg.norm(better, axis=(1, 2))
        print(
            f"{name}: {min(ratios):.2f} to {max(ratios):.2f}, error "
            f"{np.median(errors):.2f} (median), {errors.max():.2f} (most)"
        )


if __name__ == "__main__":
    main()
