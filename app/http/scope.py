"""Keys of the ASGI scope by which the edge and the application talk about a request."""

LET_IN = "trunkline.let_in"  # what authenticated the request, one of these two
BY_KEY, BY_NODE = "key", "node"
AT_ONCE = "trunkline.at_once"  # writes a whole answer in one call: `HttpProtocol.answer_at_once`
LEFT = "trunkline.left"  # present once the client has gone: what is sent is dropped
WHEN_GONE = "trunkline.when_gone"  # present where the edge calls what is put there when the client goes; one at a time
