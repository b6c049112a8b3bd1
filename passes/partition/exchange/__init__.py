"""Boxes of elements brought to the devices that need them: GShard's halo exchange and all that is like it."""
