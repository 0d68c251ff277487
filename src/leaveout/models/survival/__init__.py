"""Cox's model."""
