"""Classic groups: the members share out the partitions among themselves, led by one of them."""
