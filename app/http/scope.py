"""What the edge and whoever answers tell each other in the ASGI scope of a request."""

LET_IN = "trunkline.let_in"  # whose credential was accepted for this request, one of these two
BY_KEY, BY_NODE = "key", "node"
AT_ONCE = "trunkline.at_once"  # writes a whole answer: `HttpProtocol.answer_at_once`
LEFT = "trunkline.left"  # there at all: the client has gone, and what is sent goes nowhere
