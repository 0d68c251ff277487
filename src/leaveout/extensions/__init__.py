"""What stands on the public names and on the one contract of `developer`."""
