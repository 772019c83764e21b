"""Where images are rendered: processes of this machine, or a Ray cluster."""
