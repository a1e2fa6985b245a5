"""What has processes stand still, and go on."""
