"""3DIdent as a toolkit: render the dataset, load it, train the baselines, score any encoder."""
