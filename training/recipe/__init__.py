"""Recipes: their schema and their files."""
