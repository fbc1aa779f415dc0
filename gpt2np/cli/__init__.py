"""Command-line interface. Each subcommand is a module that defines `add_arguments` and `run`."""
