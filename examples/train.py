"""Train by contrast, without labels: `python examples/train.py data/3dident encoder.pt 1000`."""

import sys

import torch

import threedident as tdi
from threedident.encoders import BoxOutput, ImageEncoder, ResNetEncoder, save_encoder

root, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = tdi.ThreeDIdent(root)
pairs = tdi.PositivePairs(data, conditional=tdi.Normal(0.3), batch_size=64, batches=steps)
encoder = ImageEncoder(data.mean, data.std, ResNetEncoder(10), BoxOutput(10))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for step, (_, (x, x_tilde)) in enumerate(pairs.loader()):  # the latents are not looked at
    codes, codes_tilde = encoder(torch.cat([x, x_tilde])).chunk(2)
    loss = tdi.info_nce(codes, codes_tilde, tdi.baselines.Power(p=2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == steps - 1:
        print(f"step {step}: loss {loss.item():.3f}")
save_encoder(out, encoder)
