"""Load a dataset and look at it: `python examples/look.py data/3dident look.png`."""

import sys

import threedident as tdi

root, out = sys.argv[1:]
data = tdi.ThreeDIdent(root)
image, latents = data[0]  # uint8 (3, H, W); the ten raw latents, in [-1, 1]
print(f"{len(data)} images of shape {tuple(image.shape)}; the first one's factors:")
for name, raw, scene in zip(data.factor_names, latents, data.latents[0], strict=True):
    print(f"{name:<20} raw {raw:+.3f}   in the scene {scene:+.3f}")

# Up to 32 images, in the order of their object's hue.
column = data.factor_names.index("object_hue")
order = data.raw_latents[:32, column].argsort()
images = data.images(order).permute(0, 2, 3, 1).numpy()
labels = [f"{hue:+.2f}" for hue in data.raw_latents[order, column]]
tdi.render.contact_sheet(images, labels, columns=8).save(out)
print(f"wrote {out}")
