"""How many programs are drawn: see tests/profiles.py."""

import profiles as profiles
