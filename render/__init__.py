"""Rendering 3DIdent: from latents to scenes, images and a dataset on disk."""
