"""The spelling of programs, shardings and device assignments: our text, and JAX's, HLO's, Shardy's and GShard's
notations."""
