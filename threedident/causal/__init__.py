"""Causal models over the scene's factors. The built-in ones are the TOML files in `models`."""

from __future__ import annotations

from threedident.causal.files import load_model as load_model
from threedident.causal.files import model_names as model_names
from threedident.causal.model import INDEPENDENT as INDEPENDENT
from threedident.causal.model import OBSERVED as OBSERVED
from threedident.causal.model import CausalModel as CausalModel
from threedident.causal.model import Variable as Variable
from threedident.causal.parsing import parse_model as parse_model
from threedident.causal.sampling import Draws as Draws
from threedident.causal.sampling import Sampling as Sampling
