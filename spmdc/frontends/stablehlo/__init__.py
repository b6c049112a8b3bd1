"""StableHLO and HLO modules as programs."""
