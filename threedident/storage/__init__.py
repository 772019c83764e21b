"""Files of a dataset: atomic writes, HDF5 shards, the manifest, the directory.

`shard_plan`, `statistics`, `shard_record` and `manifest` know what is stored; `shards`,
`directory` and `locks` the disk. `tensor_archives` holds what checkpoints and encoders share.
"""
