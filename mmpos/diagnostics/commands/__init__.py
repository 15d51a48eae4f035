"""Commands of ``mmpos``: each module has ``add_arguments(parser)`` and ``run(arguments, rest)``."""
