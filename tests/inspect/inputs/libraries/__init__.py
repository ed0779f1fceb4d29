"""Inputs of models of timm, torchvision and diffusers."""
