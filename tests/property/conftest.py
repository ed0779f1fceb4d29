"""How many programs are drawn: see tests/hypothesis_profiles.py."""

from tests import hypothesis_profiles as hypothesis_profiles  # how many examples are drawn
