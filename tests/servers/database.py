"""An MCP server in front of a database. `database.py URL`: its tool `query` sends one statement, on a connection of its
own, and answers the first row."""

import json
import sys

import psycopg


def query(statement: str) -> str:
    with psycopg.connect(sys.argv[1], connect_timeout=20) as connection:
        return json.dumps(connection.execute(statement).fetchone())


def answered(method: str, params: dict) -> dict:
    if method == "initialize":
        info = {"name": "database", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"statement": {"type": "string"}}, "required": ["statement"]}
        return {"tools": [{"name": "query", "inputSchema": schema}]}
    try:
        return {"content": [{"type": "text", "text": query(params["arguments"]["statement"])}]}
    except psycopg.Error as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answered(message["method"], message.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
