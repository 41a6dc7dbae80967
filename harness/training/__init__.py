"""What a training step costs: compute, emulated so far, and later the exchange of gradients."""
