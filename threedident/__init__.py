"""3DIdent as a toolkit: render the dataset of ten latent factors, read it, check it."""
