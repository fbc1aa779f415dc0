"""Jobs of the command line on a Ray cluster (extra `ray`)."""
