"""A topology of six nodes at 50 payments a second: how late its results are, and what a batch costs."""
