"""A serving workload, and how much of it fits, as text.

Input: an estimate of serving, or its fit. Output: lines, each a name and a text; a text. Invariant:
other estimates have no such lines.
"""

from __future__ import annotations

from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit
from torchfake.inspect.records.units import bytes_text, compared_bytes, number_text

_WHY = {"model": " (the model's limit)", "search": " or more"}


def serving_lines(estimate: Estimate) -> list[tuple[str, str]]:
    """The lines about a serving workload, and what each kind of layer caches for it."""
    serve, cache = estimate.step.serve, estimate.cache
    if serve is None or cache is None:
        return []
    prompts = f"prompts of {serve.prompt_length:,}"
    if serve.prefill is not None:
        prompts += f", {serve.prefill:,} tokens in a pass"
    dtype = "" if serve.dtype_name is None else f" of {serve.dtype_name}"
    served = f"{number_text(serve.users, 'user')} x {serve.context:,} tokens, {prompts}"
    per_token = bytes_text(round(cache.bytes_per_token))
    whole = compared_bytes(cache.num_bytes)
    lines = [("serves", served), ("cache", f"{whole}, {per_token} per token, {cache.name}{dtype}")]
    for kind, (count, size) in cache.by_kind.items():
        lines.append(("", f"{number_text(count, 'layer')}, {kind}: {bytes_text(size)}"))
    return lines


def served_text(fit: Fit) -> str:
    """The most users that fit, and the longest context that fits, or ``none``."""
    if fit.serve is None or (fit.users is None and fit.context is None):
        return ""
    found = []
    if fit.users:
        why = _WHY.get(fit.limited_by or "", "")
        found.append(f"{number_text(fit.users, 'user')}{why} x {fit.serve.context:,}")
    if fit.context:
        why = _WHY.get(fit.context_limited_by or "", "")
        found.append(f"{number_text(fit.serve.users, 'user')} x {fit.context:,}{why}")
    return ", ".join(found) or "none"
