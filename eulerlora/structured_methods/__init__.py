"""Methods that change the attention or the heads instead of the coefficients or the adapters."""
