"""Libraries of image models."""
