"""The endpoints of toolsets and of what they are made of: definitions, approvals, guides, recipes."""
