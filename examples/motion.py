"""The picture of the README: `python examples/motion.py motion.webp encoder.pt data/test 48`.

Ten numbers move, an image follows them, and an encoder that has only ever seen images says where
they are. A line with two marks for each factor: the dot is the number that the image was rendered
from, the ring is a linear map of the encoder's codes, fitted to the test images.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import threedident as tdi

out, file, root, frames = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
encoder = tdi.baselines.load_encoder(Path(file))
data = tdi.ThreeDIdent(root)
side = data[0][0].shape[-1]

# A closed walk: every factor goes up and down once or twice, not all at once.
turns = np.array([1, 1, 2, 1, 1, 1, 1, 1, 2, 1])
width = np.array([0.6, 0.7, 0.35, 0.8, 0.7, 0.8, 0.9, 0.5, 0.5, 0.5])
middle = np.array([0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.45, 0.45, 0.4])  # hues that differ
phase = np.array([0.0, 0.3, 0.1, 0.6, 0.2, 0.9, 0.45, 0.0, 0.7, 0.35])
time = np.arange(frames)[:, None] / frames
walk = (middle + width * np.sin(2 * np.pi * (turns * time + phase))).astype(np.float32)


@torch.inference_mode()
def codes(images: torch.Tensor) -> np.ndarray:
    """Codes (N, m) of images (N, 3, H, W), with a column of ones beside them."""
    rows = torch.cat([encoder(part) for part in images.split(64)])
    return np.concatenate([rows.double().numpy(), np.ones((len(rows), 1))], 1)


known = codes(data.images(torch.arange(len(data))))
linear, *_ = np.linalg.lstsq(known, data.raw_latents.numpy(), rcond=None)
small = tdi.render.render(walk, "3dident", resolution=side, quality="draft")
read = codes(torch.from_numpy(small).permute(0, 3, 1, 2)) @ linear

large = tdi.render.render(walk, "3dident", resolution=2 * 300)  # twice as large, then smoothed
scale, ink, grey, blue = 2, (31, 41, 55), (203, 213, 225), (29, 78, 216)


def box(x: float, y: float, r: float) -> tuple[float, ...]:
    """A circle of this radius."""
    return tuple(scale * v for v in (x - r, y - r, x + r, y + r))


pictures = []
for image, true, guess in zip(large, walk, np.clip(read, -1, 1), strict=True):
    sheet = Image.new("RGB", (scale * 720, scale * 300), "white")
    sheet.paste(Image.fromarray(image), (0, 0))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(scale * 12)
    for row, name in enumerate(tdi.FACTOR_NAMES):
        y = 22 + 25 * row
        draw.text((scale * 428, scale * y), name.replace("_", " "), ink, font, anchor="rm")
        draw.line([scale * 440, scale * y, scale * 700, scale * y], grey, 2 * scale)
        draw.ellipse(box(570 + 130 * guess[row], y, 8), outline=blue, width=2 * scale)
        draw.ellipse(box(570 + 130 * true[row], y, 4), fill=ink)
    draw.ellipse(box(448, 281, 4), fill=ink)
    draw.text((scale * 460, scale * 281), "made the image", ink, font, anchor="lm")
    draw.ellipse(box(576, 281, 7), outline=blue, width=2 * scale)
    draw.text((scale * 590, scale * 281), "the encoder's guess", ink, font, anchor="lm")
    pictures.append(sheet.resize((720, 300), Image.Resampling.LANCZOS))
pictures[0].save(
    out, save_all=True, append_images=pictures[1:], duration=100, loop=0, quality=60, method=6
)
print(f"wrote {out}")
