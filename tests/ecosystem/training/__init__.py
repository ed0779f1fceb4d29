"""Libraries that train: loops, metrics, containers of tensors, parallel models."""
