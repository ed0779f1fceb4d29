"""Libraries that store weights in fewer bits."""
