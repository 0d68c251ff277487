"""Cox's proportional-hazards model."""
