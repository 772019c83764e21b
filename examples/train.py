"""Train by contrast, without labels: `python examples/train.py data/3dident encoder.pt 1000`."""

import sys

import torch

from threedident.baselines.losses import Power, info_nce
from threedident.datasets import Normal, PositivePairs, ThreeDIdent
from threedident.encoders import BoxOutput, ImageEncoder, ResNetEncoder, save_encoder

root, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = ThreeDIdent(root)
pairs = PositivePairs(data, conditional=Normal(0.3), batch_size=64, batches=steps)
encoder = ImageEncoder(data.mean, data.std, ResNetEncoder(10), BoxOutput(10))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for step, (_, (x, x_tilde)) in enumerate(pairs.loader()):  # the latents are not looked at
    codes, codes_tilde = encoder(torch.cat([x, x_tilde])).chunk(2)
    loss = info_nce(codes, codes_tilde, Power(p=2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == steps - 1:
        print(f"step {step}: loss {loss.item():.3f}")
save_encoder(out, encoder)
