"""Files of a dataset: atomic writes, HDF5 shards, the manifest, the directory."""
