"""Encoders of the papers as modules of torch, and the files that training and scoring exchange.

`resnet`, `conv` and `mlp` hold what maps observations to codes, `inputs` and `outputs` what stands
before and behind it, `encoder` the whole, `decoders` the way back to images, `files` the readers
and writers.
"""

from __future__ import annotations

from threedident.errors import MissingExtraError

try:
    import torch as torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "building an encoder") from error

from threedident.encoders.conv import ConvEncoder as ConvEncoder
from threedident.encoders.conv import MLPImageEncoder as MLPImageEncoder
from threedident.encoders.decoders import ConvDecoder as ConvDecoder
from threedident.encoders.decoders import MLPDecoder as MLPDecoder
from threedident.encoders.encoder import ImageEncoder as ImageEncoder
from threedident.encoders.encoder import VectorEncoder as VectorEncoder
from threedident.encoders.encoder import build as build
from threedident.encoders.files import load_decoder as load_decoder
from threedident.encoders.files import load_encoder as load_encoder
from threedident.encoders.files import read_decoder as read_decoder
from threedident.encoders.files import read_encoder as read_encoder
from threedident.encoders.files import save_decoder as save_decoder
from threedident.encoders.files import save_encoder as save_encoder
from threedident.encoders.inputs import Normalize as Normalize
from threedident.encoders.mlp import MLPEncoder as MLPEncoder
from threedident.encoders.mlp import WhitenedMLP as WhitenedMLP
from threedident.encoders.outputs import BoxOutput as BoxOutput
from threedident.encoders.outputs import GaussianOutput as GaussianOutput
from threedident.encoders.outputs import SphereOutput as SphereOutput
from threedident.encoders.outputs import UnboundedOutput as UnboundedOutput
from threedident.encoders.part import Part as Part
from threedident.encoders.resnet import ARCHITECTURES as ARCHITECTURES
from threedident.encoders.resnet import ResNetEncoder as ResNetEncoder
