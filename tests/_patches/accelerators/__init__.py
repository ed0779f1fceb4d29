"""Tests of what a mode answers of torch's modules of accelerators."""
