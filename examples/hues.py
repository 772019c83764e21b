"""The hue finding as a picture: `python examples/hues.py docs/images/hues.png`.

Thirteen steps of each hue from raw -1 to +1, as the released code maps it and wrapped.
"""

import sys

import numpy as np

from threedident.factors import factor_index
from threedident.render.direct.engine import render
from threedident.render.figures import contact_sheet

hues = ("object_hue", "spotlight_hue", "background_hue")
steps = np.linspace(-1, 1, 13)
rows, labels = [], []
for name in hues:
    for preset in ("3dident", "3dident-wrapped"):
        raw = np.zeros((len(steps), 10), np.float32)
        raw[:, factor_index("z")] = -0.4  # where more of the ground is seen
        raw[:, factor_index(name)] = steps
        rows.append(render(raw, preset, resolution=72))
        what = name.split("_")[0] + (", wrapped" if preset != "3dident" else "")
        labels += [what, *(f"{step:+.2f}" for step in steps[1:])]
contact_sheet(np.concatenate(rows), labels, columns=len(steps)).save(sys.argv[1])
print(f"wrote {sys.argv[1]}")
