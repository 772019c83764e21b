"""Reading datasets: shard directories, packed files and the published layout."""
