"""Score someone else's encoder: `python examples/score.py data/3dident-test scores`."""

import sys
from pathlib import Path

import numpy as np
import torch
from torchvision.models import resnet18

import threedident as tdi

root, out = Path(sys.argv[1]), Path(sys.argv[2])
data = tdi.ThreeDIdent(root)

# Theirs: anything that makes a row of numbers of an image. This one has never been trained;
# with weights="DEFAULT" torchvision fetches one that was, on photographs.
theirs = resnet18(weights=None).eval()

with torch.inference_mode():
    numbers = torch.arange(len(data)).split(64)
    codes = torch.cat([theirs(data.images(each) / 255) for each in numbers])

# Codes in a file are a submission: a row for every test image, in the test set's order.
out.mkdir(parents=True, exist_ok=True)
np.save(out / "codes.npy", codes.numpy())
result = tdi.evaluate_encoder(out / "codes.npy", root, metrics=("linear_r2", "mcc"))
result.write(out, overwrite=True)  # scores.json and report.html, in place of earlier ones
print("\n".join(result.summary()))
