"""The ten factors in motion: `python examples/factors.py docs/images/factors.gif 16`.

Ten images of random latents. In each of them one factor goes from raw +1 to -1 and back, and the
nine others stay where they are.
"""

import sys

import numpy as np

from threedident.factors import FACTOR_NAMES, NUM_FACTORS
from threedident.render.direct.engine import render
from threedident.render.figures import contact_sheet

out, frames = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(4)
base = random.uniform(-0.6, 0.6, (NUM_FACTORS, NUM_FACTORS)).astype(np.float32)
base[:, 7:] = random.uniform(-1, 1, (NUM_FACTORS, 3))  # hues
labels = [name.replace("_", " ") for name in FACTOR_NAMES]
sheets = []
for frame in range(frames):
    raw = base.copy()
    phases = frame / frames + np.arange(NUM_FACTORS) / NUM_FACTORS  # not all at once
    np.fill_diagonal(raw, np.cos(2 * np.pi * phases))
    images = render(raw, "3dident-wrapped", resolution=112)
    sheets.append(contact_sheet(images, labels, columns=5).quantize(kmeans=2, dither=0))
sheets[0].save(out, save_all=True, append_images=sheets[1:], duration=120, loop=0)
print(f"wrote {out}")
