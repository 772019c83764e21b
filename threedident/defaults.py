"""Default values that the command line and the library share; importing it loads nothing."""

from __future__ import annotations

#: The generator preset.
PRESET = "3dident"
#: The engine, its quality level, and the pixels along each side of an image.
ENGINE = "cycles"
QUALITY = "standard"
RESOLUTION = 224
#: Images in a shard at 224 x 224 pixels; fewer of larger ones.
SHARD_SIZE = 100
#: Images after which a render process is replaced by a fresh one. Its memory is flat
#: (docs/rendering.md), so this only guards against what a new Blender or driver may leak;
#: starting one takes a second. The direct engine makes small images so fast that its processes
#: would start again every few seconds.
IMAGES_PER_WORKER = 1000
IMAGES_PER_DIRECT_WORKER = 20_000
#: Seconds without a finished image after which a render process counts as hung, at 224 x 224.
RENDER_TIMEOUT = 600.0
#: Images that a dataset can have, and those in a shard.
MOST_IMAGES = 100_000_000
MOST_IN_A_SHARD = 10_000
#: Images that an encoder is handed at once; seconds and gigabytes that it may take for all.
BATCH_SIZE = 256
TIME_LIMIT = 7200.0
MEMORY_LIMIT = 8.0
#: Bootstrap replicates behind an interval.
BOOTSTRAP = 1000
#: Images that an entry of a leaderboard is scored on anew.
FRESH_IMAGES = 4096

#: What stands between the versions of Blender and of Warp in that of the engine cycles.
VERSION_JOINT = ", Warp "
