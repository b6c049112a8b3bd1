"""Box exchanges: boxes of elements are brought to the devices that need them, as in GShard's halo exchange."""
