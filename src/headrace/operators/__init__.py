"""What Spark lacks: windows per event, sessions, late rows that are kept, joins with what was valid at a time.

Everything stands on one operator: a bucket of keys, the rows that came for it as whole Arrow tables, and the state it
keeps as Arrow tables by name. The computing modules know nothing of Spark; `hosting` brings them to it.
"""
