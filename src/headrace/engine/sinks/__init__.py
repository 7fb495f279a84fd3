"""Where a node's rows end: topics and views, each batch as often as the node's guarantee says."""
