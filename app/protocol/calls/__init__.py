"""What one session's Exchange goes by: calls that wait for their turn, when a call is overdue, what the backend has
asked, and which stream gets a message. Pure, like all of `protocol`."""
