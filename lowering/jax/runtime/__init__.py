"""Functions that generated modules contain as text. Generated modules import nothing from here: each is complete by
itself."""
