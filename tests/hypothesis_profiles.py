"""How many programs are drawn: few and always the same, or many (--hypothesis-profile=long)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ci", max_examples=150, derandomize=True, deadline=None, suppress_health_check=_SLOW
)
settings.register_profile("long", max_examples=5_000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile("ci")  # what the command line names is loaded after this
