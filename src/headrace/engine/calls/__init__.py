"""What a node's function calls: hr.windowed, hr.join, hr.enrich, hr.dedup, hr.gather."""
