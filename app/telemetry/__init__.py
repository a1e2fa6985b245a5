"""What observes calls: metrics, logs, traces, call history, and captures of one session's messages."""
