"""What stays behind in torch, in libraries and in scripts when a mode has been left."""
