"""An app for tests on the real engine."""
