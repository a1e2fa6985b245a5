"""What a node is made of, in the order in which it is opened: records, credentials, processes, routes, sessions,
membership. Each file builds one group of objects and joins what is in it; `gateway` has the whole list.
"""
