"""The command line: a module per subcommand, each with `add_arguments(parser)`, `run(args)`."""
