"""Functions that written modules bring along as text. Nothing here is imported by them: a module is complete by
itself."""
