"""From a topic, a folder or a rate to rows: sources, parsing, watermarks, tables."""
