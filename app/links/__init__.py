"""Where a session's process comes from: one of its own, one that is shared, one that is started again, or one behind a
bridge between eras. `source` has the interfaces; sessions know nothing else of this package.
"""
