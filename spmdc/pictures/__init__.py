"""Pictures of shardings, and what notebooks show.

placement  what each device holds of a tensor
plane      the two dims that a picture shows, and how things are named in it
text, svg  the drawings
picture    one of a sharding or a value
pages      what notebooks show of programs, plans, comparisons
"""
