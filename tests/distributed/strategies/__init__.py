"""Layouts that are found in models, and what four real processes count of them."""
