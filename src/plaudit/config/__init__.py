"""The typed config: its schema, recipes, and how files and overrides become one `Config`."""
