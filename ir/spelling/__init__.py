"""How programs, shardings and device assignments are spelt: our text, JAX's, HLO's, Shardy's and GShard's notations."""
