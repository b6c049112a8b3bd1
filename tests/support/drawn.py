"""How many examples properties draw."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """The examples of a property that draws `count` of them where others draw hypothesis's hundred, and so many times
    more under a profile that draws more, as `soak` does."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return count * profile.max_examples // 100
