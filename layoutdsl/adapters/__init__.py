"""Plans inside other people's loaders. What a layout is stands in specs and plans, never here."""
