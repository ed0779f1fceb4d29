"""Hugging Face's libraries, and what loads checkpoints as they do."""
