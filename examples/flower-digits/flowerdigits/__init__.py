"""Digits under skewed participation."""
