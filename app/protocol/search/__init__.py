"""Finding tools, prompts and guides by what somebody wants to do: an index in memory, and what earlier calls taught.

Words in, ranked ids out. No I/O, no clock but the one that is passed in, no model; nothing here knows a tenant, a
toolset or the protocol. Who may see what is decided by those who choose the documents.
"""
