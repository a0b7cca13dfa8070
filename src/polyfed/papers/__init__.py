"""The five papers: recipes as data, and the command that runs them."""
