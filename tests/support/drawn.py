"""The number of examples that properties draw."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """The number of examples for a property that draws `count` of them by default. Profiles that draw more than
    hypothesis's default of a hundred, such as `soak`, scale it."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return count * profile.max_examples // 100
