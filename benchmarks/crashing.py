"""An engine whose process segfaults, for hardening.py: render processes must find it by import."""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

from threedident.render.engine import create_engine
from threedident.render.settings import EngineSettings

CRASH_AT = "THREEDIDENT_CRASH_AT"  # what the engine that segfaults is told


class Crashing:
    """An engine whose process reads address 0 at some images: at first only, or always."""

    def __init__(self, settings: EngineSettings, **options: Any) -> None:
        self.engine = create_engine(settings, **options)
        self.batch = 1
        folder, self.how = os.environ[CRASH_AT].rsplit(":", 1)
        self.marks = Path(folder)

    def render_batch(self, latents: Any) -> Any:
        name = hashlib.sha256(latents.tobytes()).hexdigest()
        often = int(name, 16) % 20 == 0
        mark = self.marks / name
        if often and (self.how == "always" or not mark.exists()):
            mark.touch()
            ctypes.string_at(0)
        return self.engine.render_batch(latents)

    def close(self) -> None:
        self.engine.close()
