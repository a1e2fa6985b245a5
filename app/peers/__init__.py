"""How nodes speak to each other: connections that are kept, credentials, late heads, and what a node's death does to
those who wait for it. Decides nothing about sessions.
"""
