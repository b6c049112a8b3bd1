"""How an op is split, and by which mechanism it is computed: what it could do, what that costs, and what is chosen."""
