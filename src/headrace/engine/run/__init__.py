"""A topology that runs: session, queries, checkpoints, progress, heartbeats."""
