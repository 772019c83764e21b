"""The hue finding as a picture: `python examples/hues.py docs/images/hues.png`.

Thirteen steps of each hue from raw -1 to +1, as the released code maps it and wrapped.
"""

import sys

import numpy as np

import threedident as tdi

hues = ("object_hue", "spotlight_hue", "background_hue")
steps = np.linspace(-1, 1, 13)
rows, labels = [], []
for name in hues:
    for preset in ("3dident", "3dident-wrapped"):
        raw = np.zeros((len(steps), 10), np.float32)
        raw[:, tdi.FACTOR_NAMES.index("z")] = -0.4  # where more of the ground is seen
        raw[:, tdi.FACTOR_NAMES.index(name)] = steps
        rows.append(tdi.render.render(raw, preset, resolution=72))
        title = name.split("_")[0] + (", wrapped" if preset != "3dident" else "")
        labels += [title, *(f"{step:+.2f}" for step in steps[1:])]
sheet = tdi.render.contact_sheet(np.concatenate(rows), labels, columns=len(steps))
sheet.save(sys.argv[1])
print(f"wrote {sys.argv[1]}")
