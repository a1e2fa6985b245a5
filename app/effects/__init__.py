"""What a change of the configuration or of a credential does to the nodes that run."""
