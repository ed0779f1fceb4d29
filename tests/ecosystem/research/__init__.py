"""Libraries for research: losses, posteriors, spikes, geometry."""
